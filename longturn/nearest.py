"""The valid name that a wrong one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is closest, if one is close."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return close[0] if close else None


def nearest_hint(name: str, valid: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or nothing where no valid name is close."""
    nearest = nearest_name(name, valid)
    return f"; did you mean {nearest!r}?" if nearest else ""
