"""local_engine package."""
