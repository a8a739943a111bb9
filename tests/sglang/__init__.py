"""Whole runs on a real SGLang (`make test-sglang`)."""
