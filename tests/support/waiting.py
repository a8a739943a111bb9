"""Waiting for what another process, thread or task does. The limits end a broken test; no test asserts a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 60.0
_PAUSE_S = 0.005


def wait_until(condition: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """Return once the condition holds; AssertionError if it never does. Where an event loop runs, use `until`."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {limit_s:g} s in vain"
        time.sleep(_PAUSE_S)


async def until(condition: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """The same where an event loop runs; TimeoutError if it never does."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  # threads and processes cannot set an asyncio.Event
            await asyncio.sleep(_PAUSE_S)
