"""Which hosts are this machine alone."""

from __future__ import annotations

import pytest

from longturn.addresses import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1", "[::1]"])
def test_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "*", "example.org", "localhost.example.org"])
def test_every_other_host_is_not(host: str) -> None:
    assert not is_loopback(host)
