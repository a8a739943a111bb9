"""Command line options that all daemons share, and how a daemon's command begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from longturn.config import Config, dump_config, load_config
from longturn.errors import ConfigError
from longturn.logs import LogFormat, configure_logging

ConfigT = TypeVar("ConfigT", bound=Config)

ConfigPath = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file with a table for this daemon.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Setting to override, such as --set port=0; repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings, what each means, and exit.")]
ReadyFile = Annotated[
    Path | None, typer.Option("--ready-file", help="Write addresses as JSON to this file once serving.")
]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How log lines look.")]


def refuse_given(context: typer.Context, names: Sequence[str], *, because: str) -> None:
    """ConfigError for the first of these parameters that the command line gives, which would do nothing `because` of
    another. Values from the environment are no wish of this command line's.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{parameter.opts[0]} would do nothing: {because}")


def begin(
    model: type[ConfigT],
    *,
    table: str,
    path: Path | None,
    overrides: Sequence[str] | None,
    dry_run: bool,
    log_format: LogFormat,
) -> ConfigT:
    """Load the daemon's settings and set up its logs; with `dry_run` print the settings and exit with code 0."""
    config = load_config(model, table=table, path=path, overrides=overrides or ())
    if dry_run:
        typer.echo(dump_config(config, table=table))
        raise typer.Exit
    configure_logging(log_format, daemon=table)
    return config
