"""Versions of the protocols that two sides must agree on; that of the dispatch socket stands with the socket."""

ENVIRONMENT_PROTOCOL_VERSION = "1"
"""What a client names in GetServerInfo and a server answers; sides with different ones refuse each other."""
