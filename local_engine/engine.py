"""The compute thread and its asyncio side.

Invariant: the compute thread alone touches the scheduler, the backend and every unfinished request; the event loop
alone touches futures. They meet in two places: commands go down one queue and run between two steps, finished requests
come up through `call_soon_threadsafe`, one batch per step. A crash of the compute thread ends `run` with its exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Callable, Sequence
from typing import TypeVar

from local_engine.errors import EngineError, QueueFullError
from local_engine.request import Request
from local_engine.scheduler import Scheduler
from longturn.metrics import Metrics

T = TypeVar("T")
Command = Callable[[Scheduler], None]


class Engine:
    """Runs a scheduler in a thread and serves coroutines."""

    def __init__(self, scheduler: Scheduler, *, max_unfinished: int, metrics: Metrics) -> None:
        self._scheduler = scheduler
        self._max_unfinished = max_unfinished
        self._metrics = metrics
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._unfinished: dict[Request, asyncio.Future[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Step until `stop`; raise what the compute thread raised."""
        try:
            await asyncio.to_thread(self._compute)
        finally:
            for future in self._unfinished.values():
                future.cancel()

    def stop(self) -> None:
        """End `run` after the current step."""
        self._commands.put(None)

    async def generate(self, requests: Sequence[Request]) -> None:
        """Run requests to their end; their fields hold the results. Cancelling aborts them.

        Raises `QueueFullError` without starting any if the queue has no room for all of them.
        """
        if len(self._unfinished) + len(requests) > self._max_unfinished:
            self._metrics.count("engine/request/refused_full", len(requests))
            raise QueueFullError(
                f"the request queue is full ({len(self._unfinished)} unfinished); retry later or raise "
                "engine.max_queued_requests"
            )
        futures = [self._loop.create_future() for _ in requests]
        self._unfinished |= zip(requests, futures, strict=True)
        self._idle.clear()
        self._commands.put(lambda scheduler: scheduler.submit(requests))
        try:
            await asyncio.gather(*futures)
        except asyncio.CancelledError:
            cancelled = frozenset(requests)
            self._commands.put(lambda scheduler: scheduler.abort(lambda request: request in cancelled))
            raise

    async def wait_idle(self, timeout_s: float) -> None:
        """Return once no request is unfinished, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def call(self, command: Callable[[Scheduler], T]) -> T:
        """Run a command between two steps and return its result; an `EngineError` it raises comes out here."""
        done: asyncio.Future[T] = self._loop.create_future()

        def run(scheduler: Scheduler) -> None:
            try:
                result = command(scheduler)
            except EngineError as error:
                self._loop.call_soon_threadsafe(settle, done, error, None)
            else:
                self._loop.call_soon_threadsafe(settle, done, None, result)

        self._commands.put(run)
        return await done

    def _compute(self) -> None:
        while True:
            # With nothing to do the thread sleeps in the queue; otherwise it only empties it between two steps.
            command = self._next_command()
            if command is None:
                return
            command(self._scheduler)
            if self._scheduler.can_step and self._commands.empty():
                self._scheduler.step()
            if finished := self._scheduler.take_finished():
                self._loop.call_soon_threadsafe(self._deliver, finished)

    def _next_command(self) -> Command | None:
        try:
            return self._commands.get(block=not self._scheduler.can_step)
        except queue.Empty:
            return do_nothing

    def _deliver(self, finished: Sequence[Request]) -> None:
        for request in finished:
            future = self._unfinished.pop(request, None)
            if future is not None and not future.done():
                future.set_result(None)
        if not self._unfinished:
            self._idle.set()


def do_nothing(_: Scheduler) -> None:
    """The command between two steps when none is queued."""


def settle(future: asyncio.Future[T], error: EngineError | None, result: T | None) -> None:
    """Give a command's outcome to its waiter, if it still waits."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # T may itself be None
