"""What may be said of an address without opening it."""

from __future__ import annotations

import ipaddress

IPC_PATH_LIMIT_BYTES = 107
"""Longest path of a socket file; the system takes no more."""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and reaches no other: localhost or a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
