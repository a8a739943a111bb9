"""Workers of one kind: kept alive, placed, watched, recycled.

Invariant: a worker gets traffic only between its ready signal and its retirement, and every worker that dies without a
successor gets one, until the pool closes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from env_server.guard import Guard
from env_server.hop import Kind
from env_server.limits import TimeLimit
from env_server.refusals import RefusedError
from env_server.worker_process import Loss, WorkerLostError, WorkerProcess, WorkerSetup, WorkerState
from longturn.errors import ConfigError
from longturn.metrics import Metrics

logger = logging.getLogger(__name__)

SpawnTask = Callable[[Coroutine[object, None, None]], None]
FindTimeLimit = Callable[[str, int], TimeLimit]
"""From environment and phase."""

BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How a pool treats its workers; see EnvServerConfig for the meaning of each."""

    num_workers: int
    ready_timeout_s: float
    wait_s: float
    recycle_episodes: int
    recycle_rss_bytes: int
    recycle_grace_s: float
    recycle_limit_s: float
    longest_limit_s: float
    """No call may take longer than this; a worker that owes an answer and runs nothing for longer is stuck."""
    tick_s: float
    """Time between two looks at the workers."""


class WorkerPool:
    """`start` it, use it inside the server's task group, `close` it."""

    def __init__(
        self, setup: WorkerSetup, settings: PoolSettings, *, guard: Guard, metrics: Metrics, spawn_task: SpawnTask
    ) -> None:
        self.name = setup.name
        self.workers: list[WorkerProcess] = []
        self.time_limit: FindTimeLimit
        """Set by the server, before the first call."""
        self.before_place: Callable[[], None] = lambda: None
        """Called before a key is placed: make room on the workers."""
        self.on_lost: Callable[[WorkerProcess], None] = lambda worker: None
        self.on_retire: Callable[[WorkerProcess, bool], None] = lambda worker, is_forced: None
        """Told once a second while a retiring worker is past its grace: move what can be moved."""
        self._setup, self._settings = setup, settings
        self._guard, self._metrics, self._spawn_task = guard, metrics, spawn_task
        self._changed = asyncio.get_running_loop().create_future()
        self._isolation = asyncio.Lock()
        self._num_isolating = 0
        self._num_failed_starts = 0
        self._is_closing = False

    async def start(self) -> bytes:
        """Start all workers and wait until they are ready; returns what they say of their environments.

        Raises ConfigError if one cannot start.
        """
        limit_s = self._settings.ready_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(self._settings.num_workers):
                    await self._raise_worker()
                described = await asyncio.gather(*(asyncio.shield(worker.ready) for worker in self.workers))
        except WorkerLostError as error:
            raise self._not_ready(str(error)) from error
        except TimeoutError as error:
            raise self._not_ready(f"not within {limit_s:g} s") from error
        return described[0]

    def _not_ready(self, why: str) -> ConfigError:
        return ConfigError(
            f"a {self._setup.name} process did not become ready ({why}); its output is above;"
            " a slow machine may need a larger env_server.worker_ready_timeout_s"
        )

    async def close(self) -> None:
        """Kill all workers and wait until they are gone."""
        self._is_closing = True
        workers = list(self.workers)
        for worker in workers:
            worker.kill(Loss.RETIRED)
        # The tasks that attend them may be cancelled already, where the server ends because it crashed.
        await asyncio.gather(*(worker.reap() for worker in workers))
        self.workers.clear()

    async def place(self, key: int, environment: str) -> WorkerProcess:
        """The least loaded open worker, with `key` counted on it; RefusedError(NO_WORKER) if none opens in time."""
        self.before_place()
        worker = await self._wait_for(self._least_loaded)
        worker.keys[key] = environment
        worker.num_started += 1
        return worker

    def release(self, worker: WorkerProcess, key: int) -> None:
        """Free an episode on a worker."""
        worker.keys.pop(key, None)
        if worker.state is not WorkerState.DEAD:
            worker.post(Kind.CLOSE, key)

    @asynccontextmanager
    async def isolated(self) -> AsyncIterator[WorkerProcess]:
        """A worker with nothing on it, for one suspect. Unless `is_last_suspect`, the block leaves it empty again."""
        self._num_isolating += 1
        try:
            async with self._isolation:
                worker = await self._wait_for(self._empty_worker)
                worker.enter(WorkerState.ISOLATED)
                try:
                    yield worker
                finally:
                    self._end_isolation(worker)
        finally:
            self._num_isolating -= 1
            self._notify()

    def publish(self) -> None:
        """Write the gauges."""
        ages_s = [worker.queue_age_s for worker in self.workers]
        self._metrics.gauge("server/worker/num_queued", sum(worker.num_queued for worker in self.workers))
        self._metrics.gauge("server/worker/queue_age_s", max(ages_s, default=0.0))
        self._metrics.gauge("server/worker/rss_bytes", sum(worker.rss_bytes() for worker in self.workers))

    @property
    def is_last_suspect(self) -> bool:
        """Inside `isolated`: whether nobody else waits for a worker of their own."""
        return self._num_isolating == 1

    async def watch(self) -> None:
        """Kill workers whose call takes too long, replace those that are worn; runs until cancelled."""
        seen: dict[tuple[int, int], float] = {}
        checked_wear_at_s = time.monotonic()
        while True:
            await asyncio.sleep(self._settings.tick_s)
            seen = self._check_times(seen)
            if time.monotonic() - checked_wear_at_s >= 1.0:
                checked_wear_at_s = time.monotonic()
                await self._check_wear()

    def _least_loaded(self) -> WorkerProcess | None:
        # A worker without episodes belongs to the suspects that wait for one: traffic must not slip in between.
        is_reserved = self._num_isolating > 0 and not any(w.state is WorkerState.ISOLATED for w in self.workers)
        candidates = [w for w in self.workers if w.state is WorkerState.OPEN and not (is_reserved and w.is_empty)]
        return min(candidates, key=lambda worker: len(worker.keys), default=None)

    def _empty_worker(self) -> WorkerProcess | None:
        return next((w for w in self.workers if w.state is WorkerState.OPEN and w.is_empty), None)

    async def _wait_for(self, choose: Callable[[], WorkerProcess | None]) -> WorkerProcess:
        try:
            async with asyncio.timeout(self._settings.wait_s):
                while (worker := choose()) is None:
                    if choose == self._empty_worker and self._is_full():
                        await self._raise_worker()
                    else:
                        await self._change()
        except TimeoutError as error:
            raise RefusedError(
                "NO_WORKER", f"no worker became ready within {self._settings.wait_s:g} s", retry_after_s=5.0
            ) from error
        return worker

    def _is_full(self) -> bool:
        """Whether all workers are up, so that no empty one will come by itself; a pool that closes gets none."""
        if self._is_closing:
            return False
        states = [worker.state for worker in self.workers]
        return WorkerState.STARTING not in states and states.count(WorkerState.OPEN) >= self._settings.num_workers

    def _end_isolation(self, worker: WorkerProcess) -> None:
        if worker.state is not WorkerState.ISOLATED:
            return
        worker.enter(WorkerState.OPEN)
        num_open = sum(w.state is WorkerState.OPEN for w in self.workers)
        if num_open > self._settings.num_workers and self.is_last_suspect:
            worker.is_replaced = True
            self._retire(worker)

    async def _change(self) -> None:
        await asyncio.shield(self._changed)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    async def _raise_worker(self) -> WorkerProcess | None:
        """One more worker, as soon as the machine has what it needs; None if the pool closes before."""
        while not self._is_closing:
            await asyncio.sleep(BACKOFF_S[min(self._num_failed_starts, len(BACKOFF_S) - 1)])
            if (worker := self._try_raise_worker()) is not None:
                return worker
        return None

    def _try_raise_worker(self) -> WorkerProcess | None:
        """No await between the spawn and the list: `close` must see every worker."""
        if self._is_closing:
            return None
        try:
            worker = WorkerProcess(self._setup, self._guard)
        except OSError as error:  # out of processes, descriptors or disk: that may pass
            self._num_failed_starts += 1
            logger.error("worker cannot be spawned", extra={"worker": self._setup.name, "reason": str(error)})
            return None
        self.workers.append(worker)
        self._spawn_task(self._attend(worker))
        return worker

    async def _attend(self, worker: WorkerProcess) -> None:
        """See one worker from its start to its burial and raise its successor."""
        await worker.connect()
        try:
            async with asyncio.timeout(self._settings.ready_timeout_s):
                await asyncio.shield(worker.ready)
        except (WorkerLostError, ConfigError, TimeoutError) as error:
            if not self._is_closing:
                self._num_failed_starts += 1
                logger.error("worker did not start", extra={"worker": self._setup.name, "reason": str(error)})
            worker.kill(Loss.CRASHED)
        else:
            self._num_failed_starts = 0
            worker.enter(WorkerState.OPEN)
            self._notify()
        code = await worker.reap()
        if self._is_closing:
            return
        self.on_lost(worker)
        self.workers.remove(worker)
        self._notify()
        if worker.is_replaced:
            return
        logger.warning("worker died", extra={"worker": self._setup.name, "worker_pid": worker.pid, "exit_code": code})
        self._metrics.count("server/worker/num_restarts")
        await self._raise_worker()

    def _check_times(self, seen: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
        """Kill what is over its limit in two looks in a row: a look may catch a slot half written."""
        now_s = time.monotonic()
        overdue: dict[tuple[int, int], float] = {}
        for worker in self.workers:
            if worker.state is WorkerState.DEAD or not worker.num_waiting:
                continue
            running = worker.running()
            late = {key: at_s for key, at_s, phase in running if now_s - at_s > self._limit_s(worker, key, phase)}
            culprits = frozenset(key for key, at_s in late.items() if seen.get((worker.pid, key)) == at_s)
            if culprits:
                logger.warning("worker killed: a call took too long", extra={"worker_pid": worker.pid})
                self._metrics.count("server/worker/num_timeouts")
                worker.kill(Loss.NEIGHBOUR_TIMED_OUT, culprits)
            elif not running and now_s - worker.waited_since_s > 2 * self._settings.longest_limit_s:
                logger.warning("worker killed: it owes answers and runs nothing", extra={"worker_pid": worker.pid})
                worker.kill(Loss.CRASHED)
            overdue.update({(worker.pid, key): at_s for key, at_s in late.items()})
        return overdue

    def _limit_s(self, worker: WorkerProcess, key: int, phase: int) -> float:
        environment = worker.keys.get(key)
        return self._settings.longest_limit_s if environment is None else self.time_limit(environment, phase).time_s

    async def _check_wear(self) -> None:
        now_s = time.monotonic()
        for worker in list(self.workers):
            if worker.state is WorkerState.OPEN and not worker.is_replaced and self._is_worn(worker):
                self._spawn_task(self._replace(worker))
            elif worker.state is WorkerState.RETIRING:
                if worker.is_empty:
                    worker.kill(Loss.RETIRED)
                elif now_s > worker.retire_at_s:
                    self.on_retire(worker, now_s > worker.retire_at_s + self._settings.recycle_limit_s)

    def _is_worn(self, worker: WorkerProcess) -> bool:
        settings = self._settings
        return bool(
            (settings.recycle_episodes and worker.num_started >= settings.recycle_episodes)
            or (settings.recycle_rss_bytes and worker.rss_bytes() > settings.recycle_rss_bytes)
        )

    async def _replace(self, worker: WorkerProcess) -> None:
        """Raise the successor first; the worn worker retires once the successor is ready."""
        worker.is_replaced = True
        successor = await self._raise_worker()
        if successor is None:
            return
        await asyncio.wait([successor.ready])
        if worker.state is WorkerState.OPEN:
            self._retire(worker)

    def _retire(self, worker: WorkerProcess) -> None:
        worker.enter(WorkerState.RETIRING)
        worker.retire_at_s = time.monotonic() + self._settings.recycle_grace_s
        self._metrics.count("server/worker/num_recycled")
        logger.info("worker retires", extra={"worker_pid": worker.pid, "num_episodes": len(worker.keys)})
