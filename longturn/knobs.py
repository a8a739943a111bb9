"""What a knob accepts: the one reading of its values, at the server and before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

from longturn.nearest import nearest_hint
from longturn.records import KnobValue

KnobKind = Literal["int", "float", "bool", "choice"]

_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class KnobForm(Protocol):
    """What fixes the values of a knob."""

    @property
    def kind(self) -> KnobKind:
        """The type of its values."""
        ...

    @property
    def minimum(self) -> float | None:
        """Least number; None: any."""
        ...

    @property
    def maximum(self) -> float | None:
        """Greatest number; None: any."""
        ...

    @property
    def choices(self) -> Sequence[str]:
        """The texts that kind `choice` takes."""
        ...


class KnobValueError(ValueError):
    """A value that a knob does not take; the message goes on after the knob's name."""


def read_knob(form: KnobForm, value: KnobValue) -> KnobValue:
    """The value in the knob's own type, a string read as its text form; KnobValueError says what is accepted."""
    given = value.strip() if isinstance(value, str) else value
    match form.kind:
        case "bool":
            read: KnobValue | None = _read_bool(given)
        case "choice":
            read = str(given) if str(given) in form.choices else None
        case "int" | "float":
            read = _read_number(form, given)
    if read is None:
        hint = nearest_hint(str(given), form.choices)
        raise KnobValueError(f"is {_accepted(form)}; got {value!r}{hint}")
    return read


def _read_bool(value: KnobValue) -> bool | None:
    read = _BOOLS.get(value.lower()) if isinstance(value, str) else value
    return read if isinstance(read, bool) else None


def _read_number(form: KnobForm, value: KnobValue) -> int | float | None:
    number = None if isinstance(value, bool) else _number(value)
    if number is None or not _is_finite(number):
        return None
    if form.kind == "int" and number != int(number):
        return None
    is_low = form.minimum is not None and number < form.minimum
    is_high = form.maximum is not None and number > form.maximum
    if is_low or is_high:
        return None
    return int(number) if form.kind == "int" else float(number)


def _number(value: int | float | str) -> int | float | None:
    """A whole number whole, for one beyond 2**53 would lose digits as a float; None for what is no number."""
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return None


def _is_finite(number: int | float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _accepted(form: KnobForm) -> str:
    if form.kind == "bool":
        return "true or false"
    if form.kind == "choice":
        return f"one of {', '.join(form.choices)}"
    kind = "a whole number" if form.kind == "int" else "a number"
    match form.minimum, form.maximum:
        case None, None:
            return kind
        case low, None:
            return f"{kind} of at least {low:g}"
        case None, high:
            return f"{kind} of at most {high:g}"
        case low, high:
            return f"{kind} in [{low:g}, {high:g}]"
