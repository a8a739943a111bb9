"""Tasks that live as long as the server: all have one parent, and the first that crashes ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Background:
    """Starts tasks in a task group and can cancel those that are left."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, None, None]) -> None:
        """Start a task of the group."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel every task that still runs."""
        for task in tuple(self._tasks):
            task.cancel()
