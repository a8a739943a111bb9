"""Reads a run folder and nothing else; writes summary.json and report.html."""
