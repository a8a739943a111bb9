"""Which environments a server serves."""

from __future__ import annotations

from env_server.config import EnvServerConfig
from env_server.registry import registered
from env_server.server import served_names


def test_the_environment_for_tests_is_served_only_where_it_is_named() -> None:
    assert "faulty" in registered()
    assert set(served_names(EnvServerConfig())) == registered().keys() - {"faulty"}
    assert served_names(EnvServerConfig(environments=("faulty",))) == ("faulty",)
