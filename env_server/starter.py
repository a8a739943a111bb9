"""Starts and forks episodes, each once per request id.

Invariant: a request id names one start. Whoever repeats it gets that start's episode, also while it is under way; a
start that failed leaves nothing behind and may be tried again. A client that stops waiting does not stop its start.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from env_server.catalog import Catalog, check_knobs
from env_server.environment import EnvironmentSpec
from env_server.episode import Episode, StartRequest
from env_server.episode_table import EpisodeTable
from env_server.hop import Kind, Phase
from env_server.journal import MemoryJournal
from env_server.pool import WorkerPool
from env_server.preparers import Preparers, refusal_from_json
from env_server.rebuilder import Rebuilder
from env_server.refusals import RefusedError
from env_server.stage import StartOrder
from env_server.tokens import TokenMint, new_id, token_digest
from env_server.worker_process import Loss, WorkerLostError, WorkerProcess
from longturn.metrics import Metrics
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)

SpawnTask = Callable[[Coroutine[object, None, None]], None]
MIN_REQUEST_ID = 16
MAX_HANGS = 2
"""A task whose start exceeded its time limit this often is refused from then on."""


@dataclass(frozen=True, slots=True)
class Started:
    """A started episode and its token."""

    episode: Episode
    token: str


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A fork; compared when a request id repeats."""

    request_id: str
    episode_id: str
    at_turn: int


@dataclass(slots=True)
class _Start:
    request: StartRequest | ForkRequest
    started: asyncio.Future[Started]


class Starter:
    """Starts episodes of one table."""

    def __init__(
        self,
        table: EpisodeTable,
        pool: WorkerPool,
        *,
        catalog: Catalog,
        preparers: Preparers,
        rebuilder: Rebuilder,
        mint: TokenMint,
        keys: itertools.count[int],
        forbid_privileged: bool,
        metrics: Metrics,
        spawn_task: SpawnTask,
    ) -> None:
        self._table, self._pool, self._catalog = table, pool, catalog
        self._preparers, self._rebuilder, self._mint, self._keys = preparers, rebuilder, mint, keys
        self._forbid_privileged = forbid_privileged
        self._metrics = metrics
        self._spawn_task = spawn_task
        self._starts: dict[str, _Start] = {}
        self._hangs: dict[tuple[str, str], int] = {}
        table.on_drop = self._forget

    @property
    def quarantined(self) -> list[str]:
        """Tasks that are refused because their start hung too often."""
        return [f"{name}:{task_id}" for (name, task_id), number in self._hangs.items() if number >= MAX_HANGS]

    async def start(self, request: StartRequest) -> Started:
        """Start an episode, or return the one that this request id started."""
        spec = self._catalog.spec(request.task.environment)
        order = self._order(spec, request)
        return await self._once(request, lambda: self._start(spec, order, request))

    async def fork(self, source: Episode, request: ForkRequest) -> Started:
        """Start an episode from a turn of another one."""
        if not (source.spec.is_forkable and source.is_replayable):
            raise RefusedError("FORK_NOT_AVAILABLE", f"{source.spec.name} says that it cannot be forked")
        if request.at_turn > source.turn_index:
            raise RefusedError(
                "BAD_REQUEST", f"at_turn {request.at_turn} is ahead of the episode's turn {source.turn_index}"
            )
        return await self._once(request, lambda: self._fork(source, request))

    def _forget(self, episode: Episode) -> None:
        self._starts.pop(episode.request.request_id, None)

    async def _once(self, request: StartRequest | ForkRequest, begin: Callable[[], Awaitable[Started]]) -> Started:
        if len(request.request_id) < MIN_REQUEST_ID:
            raise RefusedError(
                "BAD_REQUEST",
                f"request_id must be unguessable and at least {MIN_REQUEST_ID} characters long, such as a UUID",
            )
        known = self._starts.get(request.request_id)
        if known is None:
            known = _Start(request, asyncio.get_running_loop().create_future())
            self._starts[request.request_id] = known
            self._spawn_task(self._run(known, begin))
        elif known.request != request:
            raise RefusedError("REQUEST_ID_REUSED", "this request_id already started something else; choose a new one")
        return await asyncio.shield(known.started)

    async def _run(self, start: _Start, begin: Callable[[], Awaitable[Started]]) -> None:
        try:
            started = await begin()
        except RefusedError as refusal:
            del self._starts[start.request.request_id]
            start.started.set_exception(refusal)
            start.started.exception()  # the client may have stopped waiting
        else:
            start.started.set_result(started)

    def _order(self, spec: EnvironmentSpec, request: StartRequest) -> StartOrder:
        wishes = {"progress": request.with_progress, "oracle": request.with_oracle}
        asked = [name for name, is_asked in wishes.items() if is_asked]
        if asked and self._forbid_privileged:
            raise RefusedError(
                "PRIVILEGED_FORBIDDEN",
                f"this server gives out no {' and no '.join(asked)} (env_server.forbid_privileged)",
                setting="env_server.forbid_privileged",
            )
        if asked:
            self._metrics.count("server/episode/num_privileged")
            logger.info("privileged fields asked for", extra={"fields": asked, "client_id": request.client_id})
        if self._hangs.get((spec.name, request.task.task_id), 0) >= MAX_HANGS:
            raise RefusedError(
                "TASK_QUARANTINED", f"task {request.task.task_id} hung {MAX_HANGS} times in its start; take another"
            )
        return StartOrder(
            environment=spec.name,
            task_id=request.task.task_id,
            seed=request.seed,
            knobs=check_knobs(spec, request.task.knobs),
            with_progress=request.with_progress,
            with_oracle=request.with_oracle,
        )

    async def _start(self, spec: EnvironmentSpec, order: StartOrder, request: StartRequest) -> Started:
        self._table.admit(request.client_id)
        try:
            if self._catalog.needs_preparation(spec.name):
                await self._preparers.prepare(order)
            key = next(self._keys)
            worker, payload = await self._reset(order, key, is_replayable=spec.determinism.value != "none")
        except RefusedError as refusal:
            self._table.dismiss(request.client_id)
            if refusal.reason == "START_TIMEOUT":
                task = (spec.name, request.task.task_id)
                self._hangs[task] = self._hangs.get(task, 0) + 1
            raise
        finally:
            self._table.end_call()
        journal = MemoryJournal(order, keeps_results=spec.determinism.value == "none")
        journal.append_result(environment_pb2.StepResult.FromString(payload).state_hash, payload)
        return self._begin(request, spec, journal, key, worker, payload, turn_index=0)

    async def _fork(self, source: Episode, request: ForkRequest) -> Started:
        self._table.admit(source.request.client_id)
        try:
            key = next(self._keys)
            order = source.journal.replay_order(request.at_turn)
            worker, payload = await self._rebuilder.copy(order, key)
        except RefusedError:
            self._table.dismiss(source.request.client_id)
            raise
        finally:
            self._table.end_call()
        journal = MemoryJournal(order.start, keeps_results=False)
        journal.extend(order)
        origin = source.request
        copied = StartRequest(
            request_id=request.request_id,
            task=origin.task,
            seed=origin.seed,
            max_turns=origin.max_turns,
            with_progress=origin.with_progress,
            with_oracle=origin.with_oracle,
            client_id=origin.client_id,
        )
        return self._begin(copied, source.spec, journal, key, worker, payload, turn_index=request.at_turn)

    def _begin(
        self,
        request: StartRequest,
        spec: EnvironmentSpec,
        journal: MemoryJournal,
        key: int,
        worker: WorkerProcess | None,
        payload: bytes,
        *,
        turn_index: int,
    ) -> Started:
        episode_id = new_id()
        token = self._mint.mint(episode_id, request.request_id)
        episode = self._table.new_episode(
            key=key,
            episode_id=episode_id,
            token_digest=token_digest(token),
            request=request,
            spec=spec,
            journal=journal,
        )
        result = environment_pb2.StepResult.FromString(payload)
        episode.worker = worker
        episode.begin(result, payload, turn_index=turn_index)
        self._table.add(episode)
        return Started(episode, token)

    async def _reset(self, order: StartOrder, key: int, *, is_replayable: bool) -> tuple[WorkerProcess | None, bytes]:
        """Run the reset; after a crash once more, alone, and then the first step finds a worker by replay."""
        worker = await self._pool.place(key, order.environment)
        try:
            kind, payload = await worker.call(Kind.START, key, order.to_json())
        except WorkerLostError as error:
            if error.loss is Loss.TIMED_OUT:
                raise self._start_timeout(order) from error
            if not is_replayable:
                raise RefusedError(
                    "WORKER_CRASHED", f"the worker died while {order.task_id} started", retry_after_s=1.0
                ) from error
            return await self._reset_alone(order, key)
        if kind != Kind.RESULT:
            self._pool.release(worker, key)
            raise refusal_from_json(payload)
        return worker, payload

    async def _reset_alone(self, order: StartOrder, key: int) -> tuple[WorkerProcess | None, bytes]:
        try:
            async with self._pool.isolated() as worker:
                worker.keys[key] = order.environment
                kind, payload = await worker.call(Kind.START, key, order.to_json())
                stays = kind == Kind.RESULT and self._pool.is_last_suspect
                if not stays:
                    self._pool.release(worker, key)
        except WorkerLostError as error:
            if error.loss is Loss.TIMED_OUT:
                raise self._start_timeout(order) from error
            raise RefusedError("WORKER_CRASHED", f"starting {order.task_id} crashed its worker twice") from error
        if kind != Kind.RESULT:
            raise refusal_from_json(payload)
        return worker if stays else None, payload

    def _start_timeout(self, order: StartOrder) -> RefusedError:
        setting = self._pool.time_limit(order.environment, Phase.START).setting
        return RefusedError(
            "START_TIMEOUT", f"task {order.task_id} took longer than {setting} to start", setting=setting
        )
