"""`longturn serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from env_server.config import EnvServerConfig
from longturn.config import spell_override
from longturn.logs import LogFormat
from longturn.options import ConfigPath, DryRun, LogFormatOption, Overrides, ReadyFile, begin


def serve(
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", help="Environment to serve, by name or package.module:Class; repeatable."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; off loopback it needs TLS and tokens.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0 chooses a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; 0: one per core.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder in which episodes outlive the server.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File of bearer tokens, one a line.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve off loopback unencrypted, to anybody.")] = False,
    insecure_sandbox: Annotated[
        bool, typer.Option("--insecure-sandbox", help="Run programs where the machine cannot shut them in.")
    ] = False,
    config: ConfigPath = None,
    overrides: Overrides = None,
    ready_file: ReadyFile = None,
    log_format: LogFormatOption = LogFormat.PRETTY,
    dry_run: DryRun = False,
) -> None:
    """Serve text environments over gRPC."""
    flags = {
        "host": host,
        "port": port,
        "num_workers": workers,
        "state_dir": state_dir,
        "token_file": token_file,
        "environments": env or None,
        "insecure": insecure or None,
        "insecure_sandbox": insecure_sandbox or None,
    }
    given = [spell_override(name, value) for name, value in flags.items() if value is not None]
    settings = begin(
        EnvServerConfig,
        table="env_server",
        path=config,
        overrides=[*(overrides or ()), *given],
        dry_run=dry_run,
        log_format=log_format,
    )
    from env_server.daemon import run  # after parsing: --help must not wait for grpc

    run(settings, ready_file=ready_file)
