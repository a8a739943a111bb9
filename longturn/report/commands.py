"""`longturn report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PARTS = ("config.toml", "ledger.db", "learner_summary.json", "evaluations", "metrics")
"""What a run may hold that a report can tell of."""


def report(
    run: Annotated[Path, typer.Argument(help="Run folder, such as runs/quickstart.")],
) -> None:
    """Write summary.json and report.html of a run from what lies in its folder."""
    from longturn.errors import ConfigError

    if not any((run / name).exists() for name in _PARTS):
        raise ConfigError(
            f"{run} is no run folder: it holds none of {', '.join(_PARTS)}; `longturn train` makes one below runs/"
        )
    from longturn.disk import naming
    from longturn.report.page import write_report  # after parsing: --help must not wait for protobuf
    from longturn.report.summary import write_summary

    with naming(run):
        write_summary(run)
        report_path = write_report(run)
    typer.echo(report_path)
