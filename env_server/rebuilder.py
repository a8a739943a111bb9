"""Brings episodes back by replaying their journals, and plays journals again for forks and transcripts.

Invariant: an episode whose worker crashed under its step is replayed alone before it is trusted again; a second crash
makes it FAILED. What a replay cannot verify is lost, never silently different.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Coroutine

from env_server.episode import Episode
from env_server.episode_table import EpisodeTable
from env_server.hop import Kind
from env_server.pool import WorkerPool
from env_server.preparers import Preparers, refusal_from_json
from env_server.refusals import RefusedError
from env_server.worker_process import Loss, WorkerLostError, WorkerProcess
from longturn.metrics import Metrics
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)

MAX_MOVES = 5
"""A replay that loses its worker to others' faults this often gives up."""

SpawnTask = Callable[[Coroutine[object, None, None]], None]


class Rebuilder:
    """Rebuilds episodes of one table on its pool."""

    def __init__(
        self,
        table: EpisodeTable,
        pool: WorkerPool,
        *,
        preparers: Preparers,
        keys: itertools.count[int],
        metrics: Metrics,
        spawn_task: SpawnTask,
    ) -> None:
        self._table, self._pool, self._preparers, self._keys = table, pool, preparers, keys
        self._metrics, self._spawn_task = metrics, spawn_task
        table.resume = self._resume

    def _resume(self, episode: Episode, loss: Loss | None) -> None:
        """Give the step in flight a worker; `loss` says what became of the last one, None that it ended earlier."""
        if loss is Loss.CRASHED:
            self._spawn_task(self._retry_alone(episode))
        else:
            self._spawn_task(self._move(episode))

    async def _move(self, episode: Episode) -> None:
        """Replay on any worker, then run the step there."""
        for _ in range(MAX_MOVES):
            try:
                await self._prepare(episode)
                worker = await self._pool.place(episode.key, episode.spec.name)
                await self._replay_on(worker, episode)
            except WorkerLostError as error:
                if error.loss is Loss.CRASHED:
                    await self._retry_alone(episode)
                    return
                if error.loss is Loss.TIMED_OUT:
                    self._table.fail(episode, "EPISODE_LOST", "its replay exceeded the time limit")
                    return
            except RefusedError as refusal:
                self._table.fail(episode, *_failure(refusal))
                return
            else:
                episode.worker = worker
                action = episode.action or ""
                worker.send(Kind.STEP, episode.key, action.encode(), episode, episode.request.client_id)
                return
        self._table.fail(episode, "EPISODE_LOST", f"its replay lost {MAX_MOVES} workers in a row")

    async def _prepare(self, episode: Episode) -> None:
        """What a start prepared may be gone by now, most of all after a restart of the server."""
        try:
            await self._preparers.prepare(episode.request.order, episode.request.client_id)
        except RefusedError as refusal:
            if refusal.retry_after_s is None:
                raise
            # The preparer's own trouble: the replay does without, though its neighbours have to wait for it.
            logger.warning("a replay is not prepared", extra={"reason": refusal.reason, "detail": refusal.message})

    async def _retry_alone(self, episode: Episode) -> None:
        """Replay and step on a worker that runs nothing else; a second crash is the episode's own."""
        episode.num_crashes += 1
        if episode.num_crashes > 1:
            self._table.fail(episode, "WORKER_CRASHED", "its worker crashed twice under this step")
            return
        try:
            async with self._pool.isolated() as worker:
                worker.keys[episode.key] = episode.spec.name
                await self._replay_on(worker, episode)
                kind, payload = await worker.call(Kind.STEP, episode.key, (episode.action or "").encode())
                if self._pool.is_last_suspect:
                    episode.worker = worker
                else:
                    self._pool.release(worker, episode.key)
        except WorkerLostError as error:
            self._lost_alone(episode, error.loss)
        except RefusedError as refusal:
            self._table.fail(episode, *_failure(refusal))
        else:
            self._table.step_replied(episode, kind, payload)

    def _lost_alone(self, episode: Episode, loss: Loss) -> None:
        if loss is Loss.TIMED_OUT:
            self._table.fail_slow(episode)
        else:
            self._table.fail(episode, "WORKER_CRASHED", "its worker crashed twice under this step")

    async def _replay_on(self, worker: WorkerProcess, episode: Episode) -> None:
        self._metrics.count("server/episode/num_replays")
        payload = episode.journal.replay_order(episode.turn_index).to_json()
        kind, reply = await worker.call(Kind.REPLAY, episode.key, payload, episode.request.client_id)
        if kind != Kind.RESULT:
            self._pool.release(worker, episode.key)
            raise refusal_from_json(reply)
        episode.is_rebuilt = True
        self._metrics.count("server/episode/num_rebuilt")

    async def copy(self, source: Episode, at_turn: int, key: int) -> tuple[WorkerProcess, bytes]:
        """Play the first turns of an episode again under a new key; returns its worker and the last result."""
        await self._prepare(source)
        worker = await self._pool.place(key, source.spec.name)
        try:
            return worker, await self._ask(worker, Kind.REPLAY, key, source, at_turn)
        except RefusedError:
            self._pool.release(worker, key)
            raise

    async def transcript(self, episode: Episode) -> environment_pb2.GetEpisodeResponse:
        """First state and all turns, from what the journal kept or from a replay."""
        if episode.journal.payloads():
            return _kept_transcript(episode)
        await self._prepare(episode)
        key = next(self._keys)
        worker = await self._pool.place(key, episode.spec.name)
        try:
            whole = await self._ask(worker, Kind.TRANSCRIPT, key, episode, episode.turn_index)
            return environment_pb2.GetEpisodeResponse.FromString(whole)
        finally:
            worker.keys.pop(key, None)

    async def _ask(self, worker: WorkerProcess, kind: Kind, key: int, episode: Episode, num_turns: int) -> bytes:
        self._metrics.count("server/episode/num_replays")
        order = episode.journal.replay_order(num_turns).to_json()
        try:
            answer, reply = await worker.call(kind, key, order, episode.request.client_id)
        except WorkerLostError as error:
            raise RefusedError("NO_WORKER", f"the replay lost its worker: {error}", retry_after_s=1.0) from error
        if answer != Kind.RESULT:
            raise refusal_from_json(reply)
        return reply


def _failure(refusal: RefusedError) -> tuple[str, str]:
    """A replay that is refused means that the episode is lost, unless there was no worker to try."""
    reason = "WORKER_CRASHED" if refusal.reason == "NO_WORKER" else "EPISODE_LOST"
    return reason, refusal.message


def _kept_transcript(episode: Episode) -> environment_pb2.GetEpisodeResponse:
    results = [environment_pb2.StepResult.FromString(payload) for payload in episode.journal.payloads()]
    whole = environment_pb2.GetEpisodeResponse(initial=results[0])
    episode_return = 0.0
    for index, ((action, _), result) in enumerate(zip(episode.journal.turns(), results[1:], strict=True), start=1):
        episode_return += result.reward
        result.turn_index, result.episode_return = index, episode_return
        whole.transcript.add(action=action, result=result)
    return whole
