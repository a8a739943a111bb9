"""Finds the error inside an exception group."""

from __future__ import annotations

from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)


def first_leaf(errors: BaseExceptionGroup[ErrorT]) -> ErrorT:
    """The first error that is no group itself; a TaskGroup's first failure is what ended it."""
    first = errors.exceptions[0]
    return first_leaf(first) if isinstance(first, BaseExceptionGroup) else first
