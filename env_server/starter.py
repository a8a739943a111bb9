"""Starts and forks episodes, each once per request id.

Invariant: a request id names one start. Whoever repeats it gets that start's episode, also while it is under way; a
start that failed leaves nothing behind and may be tried again. A client that stops waiting does not stop its start.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace

from env_server.catalog import Catalog, check_knobs
from env_server.environment import EnvironmentSpec
from env_server.episode import Episode
from env_server.episode_table import EpisodeTable
from env_server.hop import Kind, Phase
from env_server.journal import Journal
from env_server.pool import WorkerPool
from env_server.preparers import Preparers, refusal_from_json
from env_server.rebuilder import Rebuilder
from env_server.refusals import RefusedError
from env_server.request_log import RequestLog
from env_server.stage import StartOrder
from env_server.start_request import ForkPoint, StartRequest, request_digest
from env_server.tokens import TokenMint, new_id, token_digest
from env_server.worker_process import Loss, WorkerLostError, WorkerProcess
from longturn.metrics import Metrics
from longturn.records import Task
from longturn.v1 import environment_pb2

SpawnTask = Callable[[Coroutine[object, None, None]], None]
MIN_REQUEST_ID, MAX_REQUEST_ID = 16, 128


@dataclass(frozen=True, slots=True)
class Started:
    """A started episode and its token."""

    episode: Episode
    token: str


@dataclass(frozen=True, slots=True)
class _Opening:
    """What a worker made of a start or of a fork."""

    key: int
    worker: WorkerProcess | None
    """Where it lives; None: the first step finds a worker by replay."""
    payload: bytes


@dataclass(slots=True)
class _Start:
    """A start under way."""

    request: StartRequest
    episode: asyncio.Future[Episode]


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
        self._durations = metrics.histograms("server/start/duration_s", label="environment")
        self._spawn_task = spawn_task
        self._log = RequestLog()
        self._under_way: dict[bytes, _Start] = {}
        self._started = {episode.request.request_digest: episode for episode in table.episodes.values()}
        table.on_drop = self._forget

    async def start(self, request_id: str, request: StartRequest) -> Started:
        """Start an episode, or return the one that this request id started."""
        spec = self._catalog.spec(request.task.environment)
        request = self._checked(spec, request)
        return await self._once(request_id, request, lambda: self._start(spec, request_id, request))

    async def fork(self, source: Episode, request_id: str, at_turn: int) -> Started:
        """Start an episode from a turn of another one."""
        if not (source.spec.is_forkable and source.is_replayable):
            raise RefusedError("FORK_NOT_AVAILABLE", f"{source.spec.name} says that it cannot be forked")
        if at_turn > source.turn_index:
            raise RefusedError("BAD_REQUEST", f"at_turn {at_turn} is ahead of the episode's turn {source.turn_index}")
        point = ForkPoint(source.episode_id, at_turn)
        request = replace(source.request, request_digest=request_digest(request_id), fork=point)
        return await self._once(request_id, request, lambda: self._fork(source, request_id, request, at_turn))

    def _forget(self, episode: Episode) -> None:
        self._started.pop(episode.request.request_digest, None)

    async def _once(self, request_id: str, request: StartRequest, begin: Callable[[], Awaitable[Episode]]) -> Started:
        if not MIN_REQUEST_ID <= len(request_id) <= MAX_REQUEST_ID:
            raise RefusedError(
                "BAD_REQUEST",
                f"request_id has {len(request_id)} characters; it must be unguessable and {MIN_REQUEST_ID} to"
                f" {MAX_REQUEST_ID} characters long, such as a UUID",
            )
        episode = self._started.get(request.request_digest)
        if episode is None:
            episode = await self._join(request, begin)
        elif episode.request != request:
            raise _reused()
        await self._table.until_written()
        return Started(episode, self._mint.mint(episode.episode_id, request_id))

    async def _join(self, request: StartRequest, begin: Callable[[], Awaitable[Episode]]) -> Episode:
        start = self._under_way.get(request.request_digest)
        if start is None:
            self._table.check_durable()
            start = _Start(request, asyncio.get_running_loop().create_future())
            self._under_way[request.request_digest] = start
            self._spawn_task(self._run(start, begin))
        elif start.request != request:
            raise _reused()
        return await asyncio.shield(start.episode)

    async def _run(self, start: _Start, begin: Callable[[], Awaitable[Episode]]) -> None:
        try:
            episode = await begin()
        except RefusedError as refusal:
            start.episode.set_exception(refusal)
            start.episode.exception()  # the client may have stopped waiting
        else:
            self._started[start.request.request_digest] = episode
            start.episode.set_result(episode)
        finally:
            del self._under_way[start.request.request_digest]

    def _checked(self, spec: EnvironmentSpec, request: StartRequest) -> StartRequest:
        """The request with its knobs in their own types; RefusedError if the server will not start it."""
        wishes = {"progress": request.with_progress, "oracle": request.with_oracle}
        asked = [name for name, is_asked in wishes.items() if is_asked]
        if asked and self._forbid_privileged:
            raise RefusedError(
                "PRIVILEGED_FORBIDDEN",
                f"this server gives out no {' and no '.join(asked)} (env_server.forbid_privileged)",
                setting="env_server.forbid_privileged",
            )
        knobs = check_knobs(spec, request.task.knobs)
        return replace(request, task=Task(environment=spec.name, task_id=request.task.task_id, knobs=knobs))

    def _note(self, request: StartRequest) -> None:
        """Put on record who plays, and who uses privileged fields: logged once per client, the latter counted."""
        if request.with_progress or request.with_oracle:
            self._metrics.count("server/episode/num_privileged")
            fields = {"progress": request.with_progress, "oracle": request.with_oracle}
            self._log.note(request.client_id, "client asks for privileged fields", **fields)
        self._log.note(request.client_id, "client starts its first episode")

    async def _start(self, spec: EnvironmentSpec, request_id: str, request: StartRequest) -> Episode:
        self._table.quarantine.check(request.task)
        admission = self._table.admission
        admission.admit(request.client_id)
        began_s = time.monotonic()
        try:
            await self._preparers.prepare(request.order, request.client_id)
            opening = await self._reset(request, is_replayable=spec.is_replayable)
        except RefusedError as refusal:
            admission.dismiss(request.client_id)
            if refusal.reason == "START_TIMEOUT":
                self._table.quarantine.note_hang(request.task)
            raise
        finally:
            admission.end_call()
        self._durations[spec.name].observe(time.monotonic() - began_s)
        self._note(request)
        first = environment_pb2.StepResult.FromString(opening.payload)
        payloads = None if spec.is_replayable else [opening.payload]
        journal = Journal(opening.key, request, initial_hash=first.state_hash, payloads=payloads)
        return self._begin(spec, request_id, request, journal, opening)

    async def _fork(self, source: Episode, request_id: str, request: StartRequest, at_turn: int) -> Episode:
        admission = self._table.admission
        admission.admit(request.client_id)
        try:
            key = next(self._keys)
            opening = _Opening(key, *await self._rebuilder.copy(source, at_turn, key))
        except RefusedError:
            admission.dismiss(request.client_id)
            raise
        finally:
            admission.end_call()
        self._metrics.count("server/episode/num_forked")
        journal = Journal(
            key,
            request,
            initial_hash=source.journal.initial_hash,
            turns=source.journal.packed(at_turn),
            num_turns=at_turn,
        )
        return self._begin(source.spec, request_id, request, journal, opening)

    def _begin(
        self, spec: EnvironmentSpec, request_id: str, request: StartRequest, journal: Journal, opening: _Opening
    ) -> Episode:
        episode_id = new_id()
        token = self._mint.mint(episode_id, request_id)
        episode = self._table.new_episode(
            key=opening.key,
            episode_id=episode_id,
            token_digest=token_digest(token),
            request=request,
            spec=spec,
            journal=journal,
        )
        episode.worker = opening.worker
        result = environment_pb2.StepResult.FromString(opening.payload)
        episode.begin(result, opening.payload, turn_index=journal.num_turns)
        self._table.add(episode)
        return episode

    async def _reset(self, request: StartRequest, *, is_replayable: bool) -> _Opening:
        """Run the reset; after a crash once more, alone, and then the first step finds a worker by replay."""
        order, key = request.order, next(self._keys)
        worker = await self._pool.place(key, order.environment)
        try:
            kind, payload = await worker.call(Kind.START, key, order.to_json(), request.client_id)
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
        return _Opening(key, worker, payload)

    async def _reset_alone(self, order: StartOrder, key: int) -> _Opening:
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
        return _Opening(key, worker if stays else None, payload)

    def _start_timeout(self, order: StartOrder) -> RefusedError:
        setting = self._pool.time_limit(order.environment, Phase.START).setting
        return RefusedError(
            "START_TIMEOUT", f"task {order.task_id} took longer than {setting} to start", setting=setting
        )


def _reused() -> RefusedError:
    return RefusedError("REQUEST_ID_REUSED", "this request_id already started something else; choose a new one")
