"""What the training thread asks of the dispatcher's thread, one method per question."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from learner.assigner import Announced
from learner.dispatcher import Desk, Dispatcher
from learner.engine_client import EngineClient, Target
from learner.ledger.batches import BatchProgress
from learner.ledger.records import BatchOutcome, Evaluation, GroupVerdict, TakenBatch
from learner.state import EndReason
from longturn.errors import LongturnError
from longturn.status import StatusBoard
from longturn.task_file import TaskEntry
from longturn.v1 import dispatch_pb2

logger = logging.getLogger(__name__)
_LOG_EVERY_S = 10.0
_POLL_S = 1.0


class StopRequested(LongturnError):  # noqa: N818  # it is a request, not an error
    """The process was asked to stop; everything durable is in place."""

    reason = EndReason.STOPPED.value


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitFacts:
    progress: BatchProgress
    num_pools: int
    num_engines: int
    num_running: int
    lacks_engine: bool


class TrainingDesk:
    """The ledger and the pools as the training thread sees them."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        board: StatusBoard,
        stop: threading.Event,
        *,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_wait` is called every second in which no batch is ready."""
        self._dispatcher = dispatcher
        self._on_wait = on_wait
        self._board = board
        self._stop = stop

    def check_stop(self) -> None:
        """Raise StopRequested if the process was asked to stop."""
        if self._stop.is_set():
            raise StopRequested("asked to stop; resume with --resume auto")

    def wait_for_batch(self, batch: int) -> TakenBatch:
        """Wait until every slot of a batch is complete or closed. Says every ten seconds whom it waits for."""
        started_s = logged_s = time.monotonic()
        with self._board.waiting("actors", f"groups of batch {batch}"):
            while True:
                self.check_stop()
                self._dispatcher.changed.clear()
                taken = self._dispatcher.call(lambda desk: desk.ledger.batches.take(batch))
                if taken is not None:
                    return taken
                if time.monotonic() - logged_s > _LOG_EVERY_S:
                    logged_s = time.monotonic()
                    self._log_wait(batch, logged_s - started_s)
                self._on_wait()
                self._dispatcher.changed.wait(_POLL_S)

    def refill(self, batch: int, num_groups: int) -> bool:
        """Add groups to a batch that lacks signal; whether there will be any."""
        self._dispatcher.call(lambda desk: desk.ledger.groups.open_refill(batch, num_groups))
        return True

    def _log_wait(self, batch: int, waited_s: float) -> None:
        facts = self._dispatcher.call(lambda desk: _wait_facts(desk, batch))
        progress = facts.progress
        logger.info(
            "waiting for groups",
            extra={
                "batch": batch,
                "waited_s": round(waited_s),
                "num_complete": progress.num_complete,
                "num_closed": progress.num_closed,
                "num_open": progress.num_open,
                "num_pools": facts.num_pools,
                "num_engines": facts.num_engines,
                "running_episodes": facts.num_running,
                "hint": self._hint(facts),
            },
        )

    def _hint(self, facts: _WaitFacts) -> str:
        if not facts.num_pools:
            return f"no pool is connected; start one: longturn act --set dispatch.address={self._dispatcher.address}"
        return "no engine is in rotation; nothing is assigned until one is back" if facts.lacks_engine else ""

    def record(self, batch: int, training_step: int, verdicts: Sequence[GroupVerdict]) -> None:
        """Write down what the batch holds before it is trained."""
        self._dispatcher.call(
            lambda desk: desk.ledger.batches.record(
                batch, training_step=training_step, run_epoch=desk.assigner.run_epoch, verdicts=verdicts
            )
        )

    def skip(self, batch: int, reason: EndReason) -> None:
        """Consume a batch without an update; admission opens."""
        self._dispatcher.call(lambda desk: desk.ledger.batches.consume(batch, BatchOutcome.SKIPPED, reason.value))

    def allocate_version(self, training_step: int) -> int:
        """A version that was never used before."""
        return self._dispatcher.call(lambda desk: desk.ledger.versions.allocate(training_step))

    def finish(self, batch: int, target: Target, engines: Sequence[EngineClient], *, is_announced: bool) -> None:
        """Consume a trained batch and, if an engine holds its weights, announce them, in one transaction."""

        def run(desk: Desk) -> None:
            desk.ledger.batches.consume(batch, BatchOutcome.TRAINED)
            if is_announced:
                announce(desk, target, engines)

        self._dispatcher.call(run)

    def announce(self, target: Target, engines: Sequence[EngineClient]) -> None:
        """Tell the pools which engines serve which version."""
        self._dispatcher.call(lambda desk: announce(desk, target, engines))

    def withdraw(self, engine: EngineClient) -> None:
        """Tell the pools that an engine is lost."""
        self._dispatcher.call(lambda desk: desk.assigner.withdraw(engine.url))

    def training_steps(self) -> dict[int, int]:
        """Training step of every version ever given out."""
        return self._dispatcher.call(lambda desk: desk.ledger.versions.training_steps())

    def newest_version(self, training_step: int) -> int | None:
        """The newest announced version of a training step."""
        return self._dispatcher.call(lambda desk: desk.ledger.versions.newest(training_step))

    def open_evaluation(self, target: Target, entries: Sequence[TaskEntry]) -> bool:
        """Offer the panel to the pools under a version, unless its training step was evaluated before."""

        def run(desk: Desk) -> bool:
            if desk.ledger.groups.is_evaluated(target.training_step):
                return False
            desk.ledger.groups.open_evaluation(target.policy_version, entries, group_size=1)
            return True

        return self._dispatcher.call(run)

    def evaluation(self, policy_version: int) -> Evaluation | None:
        """The evaluation of a version once it is complete."""
        return self._dispatcher.call(lambda desk: desk.ledger.groups.evaluation(policy_version))

    def pending_evaluations(self) -> list[int]:
        """Versions whose evaluation is not reported yet."""
        return self._dispatcher.call(lambda desk: desk.ledger.groups.pending_evaluations())

    def mark_reported(self, policy_version: int) -> None:
        """Record that the row of an evaluation is written."""
        self._dispatcher.call(lambda desk: desk.ledger.groups.mark_reported(policy_version))

    def close_evaluation(self, policy_version: int, reason: str) -> None:
        """Wait no longer for what an evaluation still lacks."""
        self._dispatcher.call(lambda desk: desk.ledger.groups.close_evaluation(policy_version, reason))

    def wait_for_news(self) -> None:
        """Wait a moment, or until a pool said something."""
        self._dispatcher.changed.clear()
        self._dispatcher.changed.wait(_POLL_S)

    def end(self, reason: EndReason, *, wait_s: float) -> None:
        """Tell the pools that the run is over and give them a moment to leave."""
        self._dispatcher.call(lambda desk: desk.assigner.end(reason.value))
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s and self._dispatcher.call(_num_pools):
            self.wait_for_news()


def announce(desk: Desk, target: Target, engines: Sequence[EngineClient]) -> None:
    """Record and broadcast a version, inside the dispatcher's transaction."""
    desk.ledger.versions.mark_announced(target.policy_version)
    desk.assigner.announce(
        Announced(
            policy_version=target.policy_version,
            training_step=target.training_step,
            engines=tuple(
                dispatch_pb2.EngineEndpoint(
                    url=engine.url,
                    policy_version=target.policy_version,
                    api_key=engine.api_key,
                    cache_salt=target.cache_salt,
                )
                for engine in engines
            ),
        )
    )


def _num_pools(desk: Desk) -> int:
    return sum(pool.has_said_hello for pool in desk.assigner.pools)


def _wait_facts(desk: Desk, batch: int) -> _WaitFacts:
    announced = desk.assigner.announced
    return _WaitFacts(
        progress=desk.ledger.batches.progress(batch),
        num_pools=_num_pools(desk),
        num_engines=len(announced.engines) if announced else 0,
        num_running=sum(pool.running_episodes for pool in desk.assigner.pools),
        lacks_engine=desk.assigner.lacks_engine,
    )
