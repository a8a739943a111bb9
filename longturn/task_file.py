"""Task files: one JSON object per line, `{"environment", "task_id", "knobs", "seed", "kind"}`.

`longturn envs tasks --out FILE` writes them; evaluation, warm start and the learner's slots read them. Order matters:
a panel is the first N lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from longturn.disk import write_whole
from longturn.errors import ConfigError
from longturn.json_text import parse_json
from longturn.records import KnobValue, Task

_FIELDS = frozenset({"environment", "task_id", "knobs", "seed", "kind"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A task with the seed of its episode and its kind for reports."""

    task: Task
    seed: int = 0
    kind: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must lie in [0, 2**64), got {self.seed}")


def read_tasks(path: Path) -> tuple[TaskEntry, ...]:
    """All entries of a task file in order; raise ConfigError naming the line that is wrong, or an empty file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"task file {path} cannot be read ({error.strerror}); write one with `longturn envs tasks --out {path}`"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no task file: {error}; write one with `longturn envs tasks --out`") from error
    entries = tuple(_entry(path, number, line) for number, line in enumerate(lines, start=1) if line.strip())
    if not entries:
        raise ConfigError(f"task file {path} holds no task; write one with `longturn envs tasks --out {path}`")
    return entries


def write_tasks(path: Path, entries: Iterable[TaskEntry]) -> int:
    """Write a task file in one piece and return the number of entries; DiskError if it cannot be written."""
    lines = [task_line(entry) for entry in entries]
    write_whole(path, "".join(f"{line}\n" for line in lines))
    return len(lines)


def task_line(entry: TaskEntry) -> str:
    """One line of a task file, without its newline."""
    return json.dumps(
        {
            "environment": entry.task.environment,
            "task_id": entry.task.task_id,
            "knobs": dict(entry.task.knobs),
            "seed": entry.seed,
            "kind": entry.kind,
        },
        ensure_ascii=False,
    )


def _entry(path: Path, number: int, line: str) -> TaskEntry:
    try:
        fields = parse_json(line)
        if not isinstance(fields, dict):
            raise ValueError("a line must be a JSON object")
        unknown = sorted(set(fields) - _FIELDS)
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}")
        task = Task(
            environment=_text(fields, "environment"),
            task_id=_text(fields, "task_id"),
            knobs=_knobs(fields.get("knobs", {})),
        )
        seed = fields.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        return TaskEntry(task=task, seed=seed, kind=str(fields.get("kind", "")))
    except ValueError as error:
        raise ConfigError(f"task file {path}, line {number}: {error}") from error


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {value!r}")
    return value


def _knobs(value: object) -> dict[str, KnobValue]:
    if not isinstance(value, dict):
        raise ValueError(f"knobs must be an object, got {value!r}")
    knobs: dict[str, KnobValue] = {}
    for name, knob in value.items():
        if not isinstance(knob, bool | int | float | str):
            raise ValueError(f"knob {name} must be a number, a boolean or a string, got {knob!r}")
        knobs[str(name)] = knob
    return knobs
