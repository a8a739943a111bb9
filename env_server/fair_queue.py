"""Fair sharing: who waits for a worker takes turns with the other clients, however much each of them asks for."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class FairQueue(Generic[ItemT]):
    """First in, first out for one client; round robin between clients."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[tuple[float, ItemT]]] = OrderedDict()
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    def put(self, client_id: str, item: ItemT) -> None:
        """Queue an item of a client."""
        self._items.setdefault(client_id, deque()).append((time.monotonic(), item))
        self._num_items += 1

    def take(self) -> ItemT:
        """The next client's oldest item; IndexError if there is none."""
        if not self._items:
            raise IndexError("take from an empty queue")
        client_id, items = self._items.popitem(last=False)
        _, item = items.popleft()
        if items:
            self._items[client_id] = items
        self._num_items -= 1
        return item

    @property
    def age_s(self) -> float:
        """How long the oldest item has waited; 0 if there is none."""
        oldest_s = min((items[0][0] for items in self._items.values()), default=None)
        return 0.0 if oldest_s is None else time.monotonic() - oldest_s


class FairGate:
    """Lets a number of holders in at once; those who wait are let in by turns of their clients."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    @property
    def num_waiting(self) -> int:
        """Those who wait for a place."""
        return len(self._waiting)

    @property
    def age_s(self) -> float:
        """How long the first of them has waited; 0 if nobody waits."""
        return self._waiting.age_s

    @asynccontextmanager
    async def hold(self, client_id: str) -> AsyncIterator[None]:
        """Hold a place while the block runs."""
        await self._enter(client_id)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, client_id: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(client_id, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place was given, and nobody will use it
                self._leave()
            raise

    def _leave(self) -> None:
        """Hand the place to whoever is next, without a moment in which a newcomer could take it."""
        while len(self._waiting):
            turn = self._waiting.take()
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1
