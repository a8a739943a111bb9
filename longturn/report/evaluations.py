"""Plays of the test panel, as `longturn eval` wrote them: `evaluations/POINT.TEMPERATURE.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longturn.errors import ConfigError
from longturn.report.intervals import paired_change, wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One play of the panel, one episode per task."""

    point: str
    """before or after."""
    temperature: float
    success_by_task: Mapping[str, bool]
    """Broken episodes are no result; they are only counted."""
    num_broken: int
    turns_mean: float
    score_mean: float

    @property
    def success(self) -> float:
        """Share of tasks that succeeded."""
        return sum(self.success_by_task.values()) / len(self.success_by_task)

    def as_summary(self) -> dict[str, object]:
        """What the summary says of it."""
        num_episodes = len(self.success_by_task)
        low, high = wilson(sum(self.success_by_task.values()), num_episodes)
        return {
            "success": self.success,
            "ci95": [low, high],
            "episodes": num_episodes,
            "turns_mean": self.turns_mean,
            "score_mean": self.score_mean,
            "temperature": self.temperature,
            "broken_episodes": self.num_broken,
        }


def evaluation_path(folder: Path, point: str, temperature: float) -> Path:
    """Where a play is kept."""
    return folder / "evaluations" / f"{point}.t{temperature:g}.json"


def read_evaluations(folder: Path) -> dict[tuple[str, float], Evaluation]:
    """All plays of a run by point and temperature."""
    plays = [_read(path) for path in sorted((folder / "evaluations").glob("*.json"))]
    return {(play.point, play.temperature): play for play in plays}


def change(before: Evaluation, after: Evaluation) -> dict[str, object]:
    """The change of success from one play to another, paired by task; tasks without a result in both are left out."""
    tasks = sorted(set(before.success_by_task) & set(after.success_by_task))
    if not tasks:
        raise ConfigError(f"the plays {before.point} and {after.point} share no task; start a new run to compare")
    difference, interval = paired_change(
        [before.success_by_task[task] for task in tasks], [after.success_by_task[task] for task in tasks]
    )
    return {"change": difference, "ci95": list(interval), "episodes": len(tasks)}


def _read(path: Path) -> Evaluation:
    point, _, rest = path.stem.partition(".t")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = [row for row in content["panel"] if "failure" not in row]
        if not results:
            raise ValueError("no episode has a result")
        return Evaluation(
            point=point,
            temperature=float(rest),
            success_by_task={f"{row['task_id']}#{row['seed']}": bool(row["success"]) for row in results},
            num_broken=len(content["panel"]) - len(results),
            turns_mean=float(content["turns_mean"]),
            score_mean=float(content["score_mean"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what `longturn eval` writes ({error!r}); remove it and resume") from error
