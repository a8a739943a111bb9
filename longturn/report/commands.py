"""`longturn report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Run folder, such as runs/quickstart.")],
) -> None:
    """Write summary.json and report.html of a run from what lies in its folder."""
    from longturn.errors import ConfigError

    if not run.is_dir():
        raise ConfigError(f"{run} is no run folder; `longturn train` makes one below runs/")
    from longturn.disk import naming
    from longturn.report.page import write_report  # after parsing: --help must not wait for protobuf
    from longturn.report.summary import write_summary

    with naming(run):
        write_summary(run)
        report_path = write_report(run)
    typer.echo(report_path)
