"""`longturn proxy`. Imports are light: every `longturn --help` loads this module."""

from __future__ import annotations

import typer

from clients.config import ProxyConfig
from longturn.logs import LogFormat
from longturn.options import ConfigPath, DryRun, LogFormatOption, Overrides, ReadyFile, begin


def proxy(
    config_path: ConfigPath = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    ready_file: ReadyFile = None,
    log_format: LogFormatOption = LogFormat.PRETTY,
) -> None:
    """Let agents that speak chat completions play episodes for a learner."""
    config = begin(
        ProxyConfig, table="proxy", path=config_path, overrides=overrides, dry_run=dry_run, log_format=log_format
    )
    from clients.proxy.run import run_proxy  # after parsing: --help must not wait for grpc and the tokenizer

    raise typer.Exit(run_proxy(config, ready_file=ready_file))
