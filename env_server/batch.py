"""StepBatch: many steps in one unary call, answered when enough of them are done."""

from __future__ import annotations

import asyncio

from env_server.calls import Calls
from env_server.episode import Answer
from env_server.refusals import RefusedError, to_call_error
from longturn.v1 import environment_pb2

Item = environment_pb2.StepBatchItem


class StepBatch:
    """One batch; `run` it once. Steps that are not done by then go on, and a repeat of the item gets their reply."""

    def __init__(self, calls: Calls, request: environment_pb2.StepBatchRequest, *, max_message_bytes: int) -> None:
        self._calls = calls
        self._request = request
        self._room = max_message_bytes
        self._items: list[Item | None] = [None] * len(request.steps)
        self._num_ready = 0
        self._num_wanted = min(request.min_ready or len(request.steps), len(request.steps))
        self._enough = asyncio.Event()

    async def run(self) -> environment_pb2.StepBatchResponse:
        """Start all steps, wait for as many as the request wants, and say how each item stands."""
        for index, step in enumerate(self._request.steps):
            try:
                self._begin(index, step)
            except RefusedError as refusal:
                self._put(index, Item(error=to_call_error(refusal)), 0)
        if self._num_ready < self._num_wanted:
            await self._wait()
        return environment_pb2.StepBatchResponse(items=[item or _pending() for item in self._items])

    def _begin(self, index: int, step: environment_pb2.StepRequest) -> None:
        def deliver(result: Answer, num_bytes: int) -> None:
            if isinstance(result, RefusedError):
                self._put(index, Item(error=to_call_error(result)), 0)
            elif num_bytes > self._calls.max_result_bytes:
                self._put(index, Item(error=to_call_error(self._calls.too_large(num_bytes))), 0)
            else:
                self._put(index, Item(result=result), num_bytes)

        episode = self._calls.authorise_step(step)
        self._calls.table.step(episode, step.turn_index, step.action, deliver)

    def _put(self, index: int, item: Item, num_bytes: int) -> None:
        self._room -= num_bytes + 64
        if self._room < 0 and self._num_ready:  # it does not fit any more: the reply is kept, a repeat gets it
            item = _pending()
        self._items[index] = item
        self._num_ready += 1
        if self._num_ready >= self._num_wanted:
            self._enough.set()

    async def _wait(self) -> None:
        wait = self._request.max_wait
        limit_s = wait.seconds + wait.nanos / 1e9 if self._request.HasField("max_wait") else None
        try:
            async with asyncio.timeout(limit_s):
                await self._enough.wait()
        except TimeoutError:
            return


def _pending() -> Item:
    refusal = RefusedError("STEP_PENDING", "the step still runs; repeat the item to get its reply", retry_after_s=0.0)
    return Item(error=to_call_error(refusal))
