"""Waiting for something that another process or thread does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, limit_s: float = 60.0) -> None:
    """Return once the condition holds; TimeoutError if it never does."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  # threads and processes cannot set an asyncio.Event
            await asyncio.sleep(0.01)
