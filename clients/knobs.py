"""Knobs that a user sets for every episode, checked against what each environment declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clients.catalog import EnvironmentInfo
from clients.environments import Environments
from longturn.errors import ConfigError
from longturn.knobs import KnobValueError, read_knob
from longturn.nearest import nearest_hint
from longturn.records import KnobValue
from longturn.task_file import TaskEntry


async def with_knobs(
    envs: Environments, entries: Sequence[TaskEntry], given: Mapping[str, KnobValue]
) -> list[TaskEntry]:
    """The entries with these knobs, which come before a task's own; ConfigError if an environment does not take one.

    A knob that the task id fixes is refused by the server.
    """
    if not given:
        return list(entries)
    names = {entry.task.environment for entry in entries}
    by_environment = {name: checked_knobs(await envs.environment(name), given) for name in sorted(names)}
    return [
        replace(entry, task=replace(entry.task, knobs={**entry.task.knobs, **by_environment[entry.task.environment]}))
        for entry in entries
    ]


def checked_knobs(info: EnvironmentInfo, given: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """Each knob in its own type, a string read as its text form; ConfigError names what it accepts."""
    return {name: _checked(info, name, value) for name, value in given.items()}


def _checked(info: EnvironmentInfo, name: str, value: KnobValue) -> KnobValue:
    knob = info.knobs.get(name)
    if knob is None:
        known = f"its knobs are {', '.join(info.knobs)}" if info.knobs else "it has none"
        raise ConfigError(f"--knob: {info.name} has no knob {name!r}{nearest_hint(name, info.knobs)}; {known}")
    try:
        return read_knob(knob, value)
    except KnobValueError as error:
        raise ConfigError(f"--knob: {name} of {info.name} {error}") from error
