"""All episodes of this server and what may happen to them.

Invariant: every accepted step is answered exactly once to everyone who asked for it, whatever becomes of its worker;
an episode counts as live from its admission to its final status; its worker's memory is freed at that moment.
Runs on the event loop's thread only; time is the monotonic clock, so a clock that jumps does not matter.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import NoReturn

from env_server.environment import EnvironmentSpec
from env_server.episode import Deliver, Episode, Owner, StartRequest
from env_server.hop import RESULT, STEP, Phase
from env_server.journal import Journal
from env_server.pool import WorkerPool
from env_server.refusals import RefusedError
from env_server.worker_process import Loss, WorkerProcess
from longturn.metrics import Metrics
from longturn.records import EndCause
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """See EnvServerConfig for the meaning of each."""

    lease_s: float
    max_episode_s: float
    final_grace_s: float
    max_episodes: int
    max_episodes_per_client: int
    max_requests_in_flight: int


class EpisodeTable:
    """Exactly-once steps, leases and ends of all episodes."""

    def __init__(self, pool: WorkerPool, limits: TableLimits, *, metrics: Metrics) -> None:
        self.limits = limits
        self.is_draining = False
        self.resume: Callable[[Episode, Loss | None], None]
        """Brings back an episode whose step cannot run where it was; set by the rebuilder."""
        self.on_drop: Callable[[Episode], None] = lambda episode: None
        self._pool = pool
        self._metrics = metrics
        self.episodes: dict[str, Episode] = {}
        self._by_key: dict[int, Episode] = {}
        self._num_live = 0
        self._live_by_client: Counter[str] = Counter()
        self._num_in_flight = 0
        self._num_steps = self._num_published = 0
        self._latency_s = 0.0
        self._drained: asyncio.Event | None = None
        pool.on_lost = self._worker_lost
        pool.on_retire = self._retire

    # --- admission -----------------------------------------------------------------------------------------------

    def admit(self, client_id: str) -> None:
        """Count one more live episode and one more call in flight; RefusedError where a limit forbids it."""
        limits = self.limits
        if self.is_draining or self._num_in_flight >= limits.max_requests_in_flight:
            self._refuse_call()
        if self._num_live >= limits.max_episodes:
            raise _too_many("TOO_MANY_EPISODES", "max_episodes", limits.max_episodes, "episodes are alive")
        per_client = limits.max_episodes_per_client
        if per_client and self._live_by_client[client_id] >= per_client:
            raise _too_many("TOO_MANY_EPISODES", "max_episodes_per_client", per_client, "episodes of this client")
        self._num_in_flight += 1
        self._num_live += 1
        self._live_by_client[client_id] += 1

    def dismiss(self, client_id: str) -> None:
        """Take back an admission: the start failed, or the episode has ended."""
        self._num_live -= 1
        self._live_by_client[client_id] -= 1
        if not self._live_by_client[client_id]:
            del self._live_by_client[client_id]

    def add(self, episode: Episode) -> None:
        """Take a started episode in; its admission passes to it."""
        self.episodes[episode.episode_id] = episode
        self._by_key[episode.key] = episode
        self._metrics.count("server/episode/num_started")
        if episode.is_final:
            self._settle(episode)

    def new_episode(
        self,
        *,
        key: int,
        episode_id: str,
        token_digest: bytes,
        request: StartRequest,
        spec: EnvironmentSpec,
        journal: Journal,
    ) -> Episode:
        """An episode that reports to this table; `add` it once it has begun."""
        return Episode(
            key=key,
            episode_id=episode_id,
            token_digest=token_digest,
            request=request,
            spec=spec,
            journal=journal,
            now_s=time.monotonic(),
            events=self,
        )

    def authorise(self, episode_id: str, token: str) -> Episode:
        """The episode, its lease renewed; RefusedError unless it is known and the token is its own."""
        episode = self.episodes.get(episode_id)
        if episode is None:
            raise RefusedError(
                "EPISODE_NOT_FOUND",
                f"no episode {episode_id!r} here: it ended longer ago than env_server.final_grace_s,"
                " or another server plays it",
            )
        if not compare_digest(sha256(token.encode()).digest(), episode.token_digest):
            raise RefusedError("BAD_TOKEN", f"the token is not that of episode {episode_id!r}")
        episode.renewed_at_s = time.monotonic()
        return episode

    # --- steps ---------------------------------------------------------------------------------------------------

    def step(self, episode: Episode, turn_index: int, action: str, deliver: Deliver) -> None:
        """Apply one action exactly once; `deliver` is called once, at once or later. RefusedError if it is not next."""
        if episode.action is not None:
            episode.attach(turn_index, action, deliver)
            return
        if turn_index != episode.turn_index or episode.is_final:
            episode.repeat(turn_index, action)
            deliver(episode.reply, episode.reply_bytes)
            return
        if self.is_draining or self._num_in_flight >= self.limits.max_requests_in_flight:
            self._refuse_call()
        self._num_in_flight += 1
        episode.journal.append_action(action)
        episode.action = action
        episode.deliveries.append(deliver)
        worker = episode.worker
        if worker is not None and worker.is_usable:
            worker.send(STEP, episode.key, action.encode(), episode)
        elif not episode.is_replayable:  # its worker is dead, and not buried yet
            self.fail(episode, "EPISODE_LOST", "its worker died and it cannot be replayed")
        else:
            self.resume(episode, None)

    def step_replied(self, episode: Episode, kind: int, payload: bytes) -> None:
        """The worker answered the step in flight."""
        if kind == RESULT:
            result = environment_pb2.StepResult.FromString(payload)
            episode.journal.append_result(result.state_hash, payload)
            episode.apply(result, len(payload))
            self._answer(episode)
        else:
            broken = json.loads(payload)
            self.fail(episode, broken["reason"], broken["message"])

    def step_lost(self, episode: Episode, loss: Loss) -> None:
        """The worker died with the step in flight."""
        episode.worker = None
        if loss is Loss.TIMED_OUT:
            self.fail_slow(episode)
        elif not episode.is_replayable:
            self.fail(episode, "EPISODE_LOST", f"its worker was lost ({loss.value}) and it cannot be replayed")
        else:
            self.resume(episode, loss)

    def fail_slow(self, episode: Episode) -> None:
        """Fail an episode because its step in flight exceeded the time limit."""
        setting = self._pool.time_limit(episode.spec.name, Phase.STEP).setting
        self.fail(episode, "STEP_TIMEOUT", f"the step took longer than {setting}")

    def fail(self, episode: Episode, reason: str, message: str) -> None:
        """End an episode because something broke, and answer its step in flight with that."""
        logger.warning("episode failed", extra={"episode_id": episode.episode_id, "reason": reason, "detail": message})
        self._metrics.count(f"server/episode/num_failed_{reason.lower()}")
        episode.fail(reason, message)
        self._answer(episode)

    def _answer(self, episode: Episode) -> None:
        """The step in flight, if there is one, is done: settle the episode and tell everyone."""
        now_s = time.monotonic()
        if episode.action is not None:
            self._num_steps += 1
            self._latency_s += now_s - episode.renewed_at_s
            self.end_call()
        deliveries = episode.take_deliveries()
        episode.renewed_at_s = now_s
        if episode.is_final:
            self._settle(episode)
        for deliver in deliveries:
            deliver(episode.reply, episode.reply_bytes)

    # --- ends ----------------------------------------------------------------------------------------------------

    async def end(self, episode: Episode, cause: EndCause) -> environment_pb2.StepResult:
        """End an episode once its step in flight is done; an episode that is over keeps its status."""
        await self.until_quiet(episode)
        if not episode.is_final:
            self._cut(episode, cause)
        return episode.last

    async def until_quiet(self, episode: Episode) -> None:
        """Wait until no step of the episode is in flight."""
        while episode.action is not None:
            done = asyncio.Event()
            episode.deliveries.append(lambda _result, _size, done=done: done.set())
            await done.wait()

    def renew(self, episode_id: str, token: str) -> bool:
        """Renew a lease; False if the episode is unknown, over or not the caller's."""
        try:
            return not self.authorise(episode_id, token).is_final
        except RefusedError:
            return False

    def own(self, episode: Episode, owner: Owner) -> None:
        """Hand the episode to a stream; the stream that had it is told."""
        if episode.owner is not None and episode.owner is not owner:
            episode.owner.episode_moved(episode.episode_id)
        episode.owner = owner

    def disown(self, episode_id: str, owner: Owner) -> None:
        """A stream has ended; what it still owned is owned by nobody."""
        episode = self.episodes.get(episode_id)
        if episode is not None and episode.owner is owner:
            episode.owner = None

    async def reap_forever(self) -> None:
        """End what nobody wants any more; runs until cancelled."""
        interval_s = min(5.0, max(0.05, min(self.limits.lease_s, self.limits.final_grace_s) / 4))
        while True:
            await asyncio.sleep(interval_s)
            now_s = time.monotonic()
            for episode in list(self.episodes.values()):
                self._reap(episode, now_s)
            self.publish()

    def _reap(self, episode: Episode, now_s: float) -> None:
        if episode.is_final:
            if now_s > episode.drop_at_s:
                del self.episodes[episode.episode_id]
                if episode.owner is not None:
                    episode.owner.episode_dropped(episode.episode_id)
                self.on_drop(episode)
        elif episode.action is not None:
            return
        elif now_s - episode.born_at_s > self.limits.max_episode_s:
            self._cut(episode, EndCause.MAX_EPISODE_TIME)
        elif now_s - episode.renewed_at_s > self.limits.lease_s:
            logger.info("episode reaped", extra={"episode_id": episode.episode_id})
            self._metrics.count("server/episode/num_reaped")
            self._cut(episode, EndCause.LEASE_EXPIRED)

    def _cut(self, episode: Episode, cause: EndCause) -> None:
        episode.cut(cause)
        self._settle(episode)

    def _settle(self, episode: Episode) -> None:
        """An episode has just ended: free its worker's memory and keep its last reply for a while."""
        status = environment_pb2.EpisodeStatus.Name(episode.last.status).removeprefix("EPISODE_STATUS_").lower()
        self._metrics.count(f"server/episode/num_{status}")
        self.dismiss(episode.request.client_id)
        self._by_key.pop(episode.key, None)
        if episode.worker is not None:
            self._pool.release(episode.worker, episode.key)
            episode.worker = None
        episode.drop_at_s = time.monotonic() + self.limits.final_grace_s

    # --- workers -------------------------------------------------------------------------------------------------

    def _worker_lost(self, worker: WorkerProcess) -> None:
        """Idle episodes of a dead worker: those that can be are rebuilt with their next step."""
        for key in list(worker.keys):
            episode = self._by_key.get(key)
            if episode is not None and episode.worker is worker:
                self._detach(episode, "its worker died")

    def _retire(self, worker: WorkerProcess, is_forced: bool) -> None:
        for key in list(worker.keys):
            episode = self._by_key.get(key)
            if episode is None or episode.action is not None:
                continue
            if episode.is_replayable or is_forced:
                self._pool.release(worker, key)
                self._detach(episode, "its worker was recycled")

    def _detach(self, episode: Episode, why: str) -> None:
        episode.worker = None
        if not episode.is_replayable and episode.action is None:
            self.fail(episode, "EPISODE_LOST", f"{why} and it cannot be replayed")

    # --- calls in flight -----------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Refuse new steps and starts, and wait until those in flight are done."""
        self.is_draining = True
        if self._num_in_flight:
            self._drained = asyncio.Event()
            await self._drained.wait()

    @property
    def num_in_flight(self) -> int:
        """Starts and steps that are not answered yet."""
        return self._num_in_flight

    def end_call(self) -> None:
        """A start or step is answered."""
        self._num_in_flight -= 1
        if self._drained is not None and not self._num_in_flight:
            self._drained.set()

    def publish(self) -> None:
        """Write the gauges."""
        self._metrics.gauge("server/episode/num_live", self._num_live)
        self._metrics.gauge("server/episode/num_kept", len(self.episodes))
        self._metrics.gauge("server/call/num_in_flight", self._num_in_flight)
        num_new = self._num_steps - self._num_published
        self._metrics.count("server/step/num_answered", num_new)
        if num_new:
            self._metrics.gauge("server/step/latency_ms", self._latency_s / num_new * 1e3)
        self._num_published, self._latency_s = self._num_steps, 0.0

    def _refuse_call(self) -> NoReturn:
        if self.is_draining:
            raise RefusedError(
                "SHUTTING_DOWN", "the server shuts down; try another, or this one later", retry_after_s=5.0
            )
        raise _too_many(
            "TOO_MANY_REQUESTS", "max_requests_in_flight", self.limits.max_requests_in_flight, "calls in flight"
        )


def _too_many(reason: str, setting: str, limit: int, what: str) -> RefusedError:
    return RefusedError(
        reason,
        f"{limit} {what}: the limit env_server.{setting} is reached",
        retry_after_s=1.0,
        setting=f"env_server.{setting}",
    )
