"""Slow work before a reset (generating a game), in processes of its own, and questions about tasks.

Invariant: one preparation at a time per task, at most one per process; steps never wait for either, and clients take
turns.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from env_server.fair_queue import FairGate
from env_server.hop import Kind, Phase
from env_server.pool import WorkerPool
from env_server.refusals import RefusedError
from env_server.stage import StartOrder
from env_server.worker_process import Loss, WorkerLostError
from longturn.metrics import Metrics

REMEMBERED = 65_536


@dataclass(slots=True)
class _TaskLock:
    lock: asyncio.Lock
    num_users: int = 0


class Preparers:
    """Prepares tasks on a pool of preparer processes."""

    def __init__(self, pool: WorkerPool, *, needed_by: frozenset[str], num_preparers: int) -> None:
        self._pool = pool
        self._needed_by = needed_by
        self._keys = itertools.count(1)
        self._gate = FairGate(num_preparers)
        self._locks: dict[str, _TaskLock] = {}
        self._done: OrderedDict[bytes, None] = OrderedDict()

    def publish(self, metrics: Metrics) -> None:
        """Write the gauges."""
        metrics.gauge("server/preparer/num_queued", self._gate.num_waiting)
        metrics.gauge("server/preparer/queue_age_s", self._gate.age_s)

    async def prepare(self, order: StartOrder, client_id: str) -> None:
        """Do the task's slow work once, if there is any; RefusedError if it fails, or the task or a knob is wrong."""
        if order.environment not in self._needed_by:
            return
        payload = order.to_json()
        if payload in self._done:
            return
        task = json.dumps([order.environment, order.task_id, sorted(order.knobs.items())])
        holder = self._locks.setdefault(task, _TaskLock(asyncio.Lock()))
        holder.num_users += 1
        try:
            async with holder.lock, self._gate.hold(client_id):
                if payload not in self._done:
                    await self._ask(Kind.PREPARE, order.environment, payload, what=f"preparing task {order.task_id}")
                    self._remember(payload)
        finally:
            holder.num_users -= 1
            if not holder.num_users:
                del self._locks[task]

    async def list_tasks(
        self, environment: str, split: str, filters: dict[str, str], start: int, count: int
    ) -> dict[str, Any]:
        """`num_tasks` and a page of `tasks`."""
        query = {"environment": environment, "split": split, "filters": filters, "start": start, "count": count}
        payload = json.dumps(query).encode()
        return json.loads(await self._ask(Kind.LIST_TASKS, environment, payload, what="listing tasks"))

    def _remember(self, payload: bytes) -> None:
        self._done[payload] = None
        if len(self._done) > REMEMBERED:
            self._done.popitem(last=False)

    async def _ask(self, kind: Kind, environment: str, payload: bytes, *, what: str) -> bytes:
        key = next(self._keys)
        worker = await self._pool.place(key, environment)
        try:
            answer, reply = await worker.call(kind, key, payload)
        except WorkerLostError as error:
            phase = Phase.PREPARE if kind == Kind.PREPARE else Phase.START
            raise _lost(error, what, self._pool.time_limit(environment, phase).setting) from error
        finally:
            worker.keys.pop(key, None)
        if answer != Kind.RESULT:
            raise refusal_from_json(reply)
        return reply


def _lost(error: WorkerLostError, what: str, setting: str) -> RefusedError:
    if error.loss is Loss.TIMED_OUT:
        return RefusedError(
            "START_TIMEOUT", f"{what} took too long; raise {setting}, or take another task", setting=setting
        )
    return RefusedError("WORKER_CRASHED", f"{what}: the process died", retry_after_s=1.0)


def refusal_from_json(payload: bytes) -> RefusedError:
    """What a worker refused, as the server's own refusal."""
    tree = json.loads(payload)
    return RefusedError(tree["reason"], tree["message"], **tree["metadata"])
