"""Text environments that ship with the server."""
