"""Plays of the test panel, as `longturn eval` wrote them: `evaluations/POINT.TEMPERATURE.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longturn.errors import ConfigError
from longturn.intervals import paired_change, wilson
from longturn.json_text import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One play of the panel, one episode per task."""

    point: str
    """before or after."""
    temperature: float
    success_by_task: Mapping[str, bool]
    """Broken episodes are no result; they are only counted."""
    broken_by_task: Mapping[str, str]
    """Why there is no result of the other tasks."""
    turns_mean: float | None
    score_mean: float | None
    """Means over the games with a result; None where every game broke."""

    @property
    def num_tasks(self) -> int:
        """Tasks of the panel."""
        return len(self.success_by_task) + len(self.broken_by_task)

    @property
    def success(self) -> float:
        """Share of tasks that succeeded, of those with a result."""
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
            "broken_episodes": len(self.broken_by_task),
            "broken_by_reason": dict(Counter(self.broken_by_task.values())),
        }


def evaluation_path(folder: Path, point: str, temperature: float) -> Path:
    """Where a play is kept."""
    return folder / "evaluations" / f"{point}.t{temperature:g}.json"


def read_evaluations(folder: Path) -> dict[tuple[str, float], Evaluation]:
    """All plays of a run by point and temperature."""
    plays: dict[tuple[str, float], Evaluation] = {}
    for path in sorted((folder / "evaluations").glob("*.json")):
        play = read_evaluation(path)
        if not play.success_by_task:
            raise ConfigError(f"{path}: every game of the panel broke; remove it and resume")
        plays[play.point, play.temperature] = play
    return plays


def change(before: Evaluation, after: Evaluation) -> dict[str, object]:
    """The change of success from one play to another, paired by task; tasks without a result in both are left out."""
    tasks = sorted(set(before.success_by_task) & set(after.success_by_task))
    if not tasks:
        raise ConfigError(f"the plays {before.point} and {after.point} share no task; start a new run to compare")
    difference, interval = paired_change(
        [before.success_by_task[task] for task in tasks], [after.success_by_task[task] for task in tasks]
    )
    return {"change": difference, "ci95": list(interval), "episodes": len(tasks)}


def read_evaluation(path: Path) -> Evaluation:
    """One play of a panel, of which every game may have broken; ConfigError if the file is of another format."""
    point, _, rest = path.stem.partition(".t")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        panel = content["panel"]
        return Evaluation(
            point=point,
            temperature=float(rest),
            success_by_task={_task(row): bool(row["success"]) for row in panel if "failure" not in row},
            broken_by_task={_task(row): str(row["failure"]) for row in panel if "failure" in row},
            turns_mean=_mean(content["turns_mean"]),
            score_mean=_mean(content["score_mean"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what `longturn eval` writes ({error!r}); remove it and resume") from error


def _mean(value: float | None) -> float | None:
    return None if value is None else float(value)


def _task(row: Mapping[str, object]) -> str:
    return f"{row['task_id']}#{row['seed']}"
