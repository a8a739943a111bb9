"""Run folders in which some phases count as finished, so that a test goes on with the one that it is about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from longturn.launch.layout import RunLayout
from longturn.launch.phases import phase_marker
from longturn.launch.session import new_run
from longturn.report.evaluations import evaluation_path

ECHO = Path(__file__).with_name("echo.toml")
BEFORE_THE_GATE = ("check settings", "task files", "games", "demonstrations", "imitation")


def begun_run(folder: Path, phases: Sequence[str], *overrides: str) -> RunLayout:
    """The run `echo` below `folder`/runs, with these phases finished."""
    layout = new_run(ECHO, name=None, seed=None, overrides=[f"run.folder={folder}/runs", *overrides], command="train")
    layout.phases.mkdir()
    for name in phases:
        phase_marker(layout.phases, name).write_text(json.dumps({"wall_s": 1.0, "result": {}}))
    return layout


def prepared_run(folder: Path, panel: Sequence[object], *overrides: str) -> RunLayout:
    """A run that has all but judged its gate, whose play holds the rows of `panel`: it goes on without a daemon."""
    layout = begun_run(folder, BEFORE_THE_GATE, *overrides)
    play = evaluation_path(layout.folder, "gate", 1.0)
    play.parent.mkdir()
    play.write_text(json.dumps({"turns_mean": 3.0, "score_mean": 0.5, "panel": panel}))
    return layout


def won(index: int, *, success: bool = True) -> dict[str, object]:
    """The row of a game that was played to its end."""
    return {"task_id": f"t{index}", "seed": 0, "success": success}


def broke(index: int, reason: str) -> dict[str, object]:
    """The row of a game without a result."""
    return {"task_id": f"t{index}", "seed": 0, "failure": reason}
