"""Knobs that a user sets for every episode, checked against what each environment declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clients.catalog import EnvironmentInfo, KnobInfo
from clients.environment import EnvClient
from longturn.errors import ConfigError
from longturn.nearest import nearest_hint
from longturn.records import KnobValue
from longturn.task_file import TaskEntry

_BOOLS = {"true": True, "false": False}


async def with_knobs(envs: EnvClient, entries: Sequence[TaskEntry], given: Mapping[str, KnobValue]) -> list[TaskEntry]:
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
    read = _read(knob, value)
    if read is None:
        raise ConfigError(f"--knob: {name} of {info.name} is {_accepted(knob)}; got {value!r}")
    return read


def _read(knob: KnobInfo, value: KnobValue) -> KnobValue | None:
    """The value in the knob's own type; None if it is none that the knob takes."""
    text = str(value).strip()
    if knob.kind == "bool":
        return _BOOLS.get(text.lower())
    if knob.kind == "choice":
        return text if text in knob.choices else None
    try:
        number = int(text) if knob.kind == "int" else float(text)
    except ValueError:
        return None
    # Written so that NaN is out of range.
    is_low = knob.minimum is not None and not number >= knob.minimum
    is_high = knob.maximum is not None and not number <= knob.maximum
    return None if is_low or is_high else number


def _accepted(knob: KnobInfo) -> str:
    if knob.kind == "bool":
        return "true or false"
    if knob.kind == "choice":
        return f"one of {', '.join(knob.choices)}"
    bounds = (("at least", knob.minimum), ("at most", knob.maximum))
    limits = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
    return " ".join(word for word in ("a whole number" if knob.kind == "int" else "a number", limits) if word)
