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
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from hmac import compare_digest

from env_server.admission import Admission
from env_server.durability import Durability
from env_server.environment import EnvironmentSpec
from env_server.episode import Answer, Deliver, Episode, Owner
from env_server.hop import RESULT, STEP, Phase
from env_server.journal import Journal
from env_server.pool import WorkerPool
from env_server.quarantine import Quarantine
from env_server.refusals import RefusedError
from env_server.start_request import StartRequest
from env_server.worker_process import Loss, WorkerProcess
from longturn.metrics import Metrics
from longturn.records import EndCause
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)

REBUILT = environment_pb2.StepResult(rebuilt=True).SerializeToString()
"""Appended to a serialised result it sets the field: only the server knows of it, and a repeat must show it again."""


class EpisodeTable:
    """Exactly-once steps and the ends of all episodes."""

    def __init__(
        self,
        pool: WorkerPool,
        *,
        admission: Admission,
        quarantine: Quarantine,
        durability: Durability | None,
        final_grace_s: float,
        metrics: Metrics,
    ) -> None:
        self.admission = admission
        self.quarantine = quarantine
        self.resume: Callable[[Episode, Loss | None], None]
        """Brings back an episode whose step cannot run where it was; set by the rebuilder."""
        self.on_drop: Callable[[Episode], None] = lambda episode: None
        self.episodes: dict[str, Episode] = {}
        self._by_key: dict[int, Episode] = {}
        self._pool = pool
        self._durability = durability
        self._final_grace_s = final_grace_s
        self._metrics = metrics
        self._durations = metrics.histograms("server/step/duration_s", label="environment")
        self._num_steps = self._num_published = 0
        self._latency_s = 0.0
        pool.on_lost = self._worker_lost
        pool.on_retire = self._retire
        if durability is not None:
            durability.find = self._by_key.get

    # --- coming and going ----------------------------------------------------------------------------------------

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

    def add(self, episode: Episode) -> None:
        """Take a started episode in; its admission passes to it."""
        self._metrics.count("server/episode/num_started")
        if self._durability is not None:
            self._durability.add_episode(episode)
        self.adopt(episode)

    def adopt(self, episode: Episode) -> None:
        """Take in an episode that the state log, if there is one, knows already; its admission passes to it."""
        self.episodes[episode.episode_id] = episode
        self._by_key[episode.key] = episode
        if self._durability is not None:
            episode.journal.copy_to(self._durability)
        if episode.is_final:
            self._settle(episode)

    def drop(self, episode: Episode) -> None:
        """Forget an episode that is over."""
        del self.episodes[episode.episode_id]
        del self._by_key[episode.key]
        if episode.owner is not None:
            episode.owner.episode_dropped(episode.episode_id)
        if self._durability is not None:
            self._durability.add_drop(episode)
        self.on_drop(episode)

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
            self._deliver([deliver], episode)
            return
        if self._durability is not None:
            self._durability.check()
        self.admission.begin_call(episode.request.client_id)
        episode.active_at_s = time.monotonic()
        episode.action = action
        episode.deliveries.append(deliver)
        episode.journal.append_action(action)
        if self._durability is None:
            self._run_step(episode)
        else:
            self._durability.when_written(partial(self._run_step, episode), partial(self._refuse_step, episode))

    def _run_step(self, episode: Episode) -> None:
        """Give the action in flight to the episode's worker."""
        worker = episode.worker
        if worker is not None and worker.is_usable:
            action = episode.action or ""
            worker.send(STEP, episode.key, action.encode(), episode, episode.request.client_id)
        elif not episode.is_replayable:  # its worker is dead, and not buried yet
            self.fail(episode, "EPISODE_LOST", "its worker died and it cannot be replayed")
        else:
            self.resume(episode, None)

    def _refuse_step(self, episode: Episode, refusal: RefusedError) -> None:
        """The action in flight was never run."""
        self.admission.end_call()
        for deliver in episode.take_deliveries():
            deliver(refusal, 0)

    def step_replied(self, episode: Episode, kind: int, payload: bytes) -> None:
        """The worker answered the step in flight."""
        if kind == RESULT:
            result = environment_pb2.StepResult.FromString(payload)
            recorded = payload + REBUILT if episode.is_rebuilt else payload
            episode.journal.append_turn(episode.action or "", result.state_hash, recorded)
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
        self.quarantine.note_hang(episode.request.task)
        self.fail(episode, "STEP_TIMEOUT", f"the step took longer than {setting}")

    def fail(self, episode: Episode, reason: str, message: str) -> None:
        """End an episode because something broke, and answer its step in flight with that."""
        fields = {"episode_id": episode.episode_id, "client_id": episode.request.client_id}
        logger.warning("episode failed", extra={**fields, "reason": reason, "detail": message})
        self._metrics.count(f"server/episode/num_failed_{reason.lower()}")
        if self._durability is not None:
            self._durability.add_failure(episode, reason, message)
        episode.fail(reason, message)
        self._answer(episode)

    def _answer(self, episode: Episode) -> None:
        """The step in flight, if there is one, is done: settle the episode and tell everyone."""
        now_s = time.monotonic()
        if episode.action is not None:
            self._num_steps += 1
            duration_s = now_s - episode.active_at_s
            self._latency_s += duration_s
            self._durations[episode.spec.name].observe(duration_s)
            self.admission.end_call()
        deliveries = episode.take_deliveries()
        episode.renewed_at_s = episode.active_at_s = now_s
        if episode.is_final:
            self._settle(episode)
        self._deliver(deliveries, episode)

    def _deliver(self, deliveries: list[Deliver], episode: Episode) -> None:
        """Give the episode's reply to everyone who asked, once it is written down."""
        if self._durability is None:
            for deliver in deliveries:
                deliver(episode.reply, episode.reply_bytes)
        elif deliveries:
            self._durability.when_written(
                partial(_tell, deliveries, episode.reply, episode.reply_bytes), partial(_tell_refusal, deliveries)
            )

    # --- ends ----------------------------------------------------------------------------------------------------

    async def end(self, episode: Episode, cause: EndCause) -> environment_pb2.StepResult:
        """End an episode once its step in flight is done; an episode that is over keeps its status."""
        await self.until_quiet(episode)
        if not episode.is_final:
            self.cut(episode, cause)
        await self.until_written()
        return episode.last

    async def until_quiet(self, episode: Episode) -> None:
        """Wait until no step of the episode is in flight."""
        while episode.action is not None:
            done = asyncio.Event()
            episode.deliveries.append(lambda _answer, _size, done=done: done.set())
            await done.wait()

    async def until_written(self) -> None:
        """Wait until all that has happened is written down, so that it may be told; RefusedError if it cannot be."""
        if self._durability is not None:
            await self._durability.written()

    def check_durable(self) -> None:
        """RefusedError while nothing new can be written down."""
        if self._durability is not None:
            self._durability.check()

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

    def cut(self, episode: Episode, cause: EndCause) -> None:
        """End an episode that nothing broke."""
        if self._durability is not None:
            self._durability.add_cut(episode, cause)
        episode.cut(cause)
        self._settle(episode)

    def _settle(self, episode: Episode) -> None:
        """An episode has just ended: free its worker's memory and keep its last reply for a while."""
        status = environment_pb2.EpisodeStatus.Name(episode.last.status).removeprefix("EPISODE_STATUS_").lower()
        self._metrics.count(f"server/episode/num_{status}")
        self.admission.dismiss(episode.request.client_id)
        self.put_to_sleep(episode)
        episode.drop_at_s = time.monotonic() + self._final_grace_s

    # --- workers -------------------------------------------------------------------------------------------------

    def put_to_sleep(self, episode: Episode) -> None:
        """Free the episode's worker memory; if it goes on, its next step wakes it by replay."""
        if episode.worker is not None:
            self._pool.release(episode.worker, episode.key)
            episode.worker = None

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

    # --- status --------------------------------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        """Starts and steps that are not answered yet."""
        return self.admission.num_in_flight

    def publish(self) -> None:
        """Write the gauges."""
        self.admission.publish(self._metrics)
        self._metrics.gauge("server/episode/num_kept", len(self.episodes))
        num_new = self._num_steps - self._num_published
        self._metrics.count("server/step/num_answered", num_new)
        if num_new:
            self._metrics.gauge("server/step/latency_ms", self._latency_s / num_new * 1e3)
        self._num_published, self._latency_s = self._num_steps, 0.0


def _tell(deliveries: list[Deliver], answer: Answer, num_bytes: int) -> None:
    for deliver in deliveries:
        deliver(answer, num_bytes)


def _tell_refusal(deliveries: list[Deliver], refusal: RefusedError) -> None:
    _tell(deliveries, refusal, 0)
