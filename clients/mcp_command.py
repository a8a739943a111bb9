"""`longturn mcp`. Imports are light: every `longturn --help` loads this module."""

from __future__ import annotations

from typing import Annotated

import typer

from clients.commands import Server, with_server
from clients.config import EvalConfig
from longturn.config import load_config
from longturn.logs import LogFormat, configure_logging
from longturn.options import ConfigPath, Overrides


def mcp(
    environment: Annotated[str, typer.Option("--env", help="Environment that the agent plays.")],
    server: Server = None,
    config_path: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """Show an environment to an MCP agent, over stdin and stdout."""
    configure_logging(LogFormat.PRETTY, daemon="mcp")
    config = load_config(EvalConfig, table="eval", path=config_path, overrides=with_server(overrides, server))
    from clients.mcp_view import serve_stdio  # after parsing: --help must not wait for grpc and mcp

    serve_stdio(config.env_server, environment)
