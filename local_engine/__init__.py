"""Embedded engine: serves a small model over HTTP in SGLang's dialect."""
