"""`longturn diagnose`. Loads no torch before the command runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from learner.config import LearnConfig
from longturn.config import load_config
from longturn.disk import write_json
from longturn.errors import ConfigError
from longturn.logs import LogFormat, configure_logging
from longturn.options import LogFormatOption, Overrides

_FILE = "diagnosis.json"
_BATCH_COLUMNS = {
    "batch": "batch",
    "success": "learner/episode/success_mean",
    "sampled entropy": "learner/entropy/token_mean",
    "early turns": "learner/entropy/early_third",
    "late turns": "learner/entropy/late_third",
    "oscillation": "learner/cascade/oscillation",
    "explore": "learner/cascade/explore_alarm",
    "propagate": "learner/cascade/propagate_alarm",
}
_CHECKPOINT_COLUMNS = {
    "checkpoint": "checkpoint",
    "entropy": "learner/entropy/token_mean",
    "MI first turn": "learner/mi/first_turn_token",
    "H(Z|X)": "learner/mi/first_turn_h_z_given_x",
    "retrieval": "learner/mi/first_turn_retrieval",
    "chance": "learner/mi/first_turn_chance",
    "MI any turn": "learner/mi/any_turn_token",
    "z any turn": "learner/mi/any_turn_z",
    "regime": "learner/mi/regime",
    "alarm": "learner/mi/regime_alarm",
}


def diagnose(
    run: Annotated[Path, typer.Argument(help="Run folder, such as runs/quickstart.")],
    overrides: Overrides = None,
    num_samples: Annotated[
        int, typer.Option(min=2, help="Turns that are cross-scored; never compare values of different numbers.")
    ] = 64,
    log_format: LogFormatOption = LogFormat.PRETTY,
) -> None:
    """Say from ledger and checkpoints whether a run's reasoning collapsed or its entropy cascaded."""
    if not (run / "ledger.db").is_file():
        raise ConfigError(f"{run} holds no ledger.db; give the folder of a run that has started training")
    path = run / "config.toml"
    settings = load_config(
        LearnConfig, table="learner", path=path if path.is_file() else None, overrides=overrides or ()
    )
    configure_logging(log_format, daemon="diagnose")
    from learner.diagnose import diagnose as run_diagnosis  # after parsing: it loads torch

    found = run_diagnosis(settings, run, num_samples=num_samples)
    write_json(run / _FILE, dict(found))
    console = Console(highlight=False, soft_wrap=True)
    console.print(_table("batches", _BATCH_COLUMNS, found["batches"]))
    console.print(_table("checkpoints", _CHECKPOINT_COLUMNS, found["checkpoints"]))
    if not found["checkpoints"]:
        console.print("no checkpoint is left: mutual information needs weights (learner.checkpoint.keep)")
    console.print(str(run / _FILE))


def _table(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, object]]) -> Table:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(_shown(row.get(name)) for name in columns.values()))
    return table


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
