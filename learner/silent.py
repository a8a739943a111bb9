"""Desk, publisher and board of a learner that nobody listens to: a follower of another rank, or a replay."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from learner.desk import StopRequested
from learner.engine_client import EngineClient, Target
from learner.ledger.records import Evaluation, GroupVerdict, TakenBatch
from learner.publisher import Published
from learner.state import EndReason
from longturn.task_file import TaskEntry


class BatchSource(Protocol):
    """Where batches come from that were dispatched elsewhere."""

    def take(self, batch: int) -> TakenBatch:
        """The batch of this number; StopRequested if there will be none."""
        ...

    def refill(self) -> bool:
        """Whether a batch that lacks signal comes again with more groups."""
        ...

    def training_steps(self) -> dict[int, int]:
        """Training step of every version that sampled a token of a batch so far."""
        ...


class SilentDesk:
    """Answers what the training loop asks, and tells no pool and writes no ledger."""

    def __init__(self, source: BatchSource, stop: threading.Event) -> None:
        self._source = source
        self._stop = stop
        self._num_versions = 0

    def check_stop(self) -> None:
        """Raise StopRequested if the process was asked to stop."""
        if self._stop.is_set():
            raise StopRequested("asked to stop; resume with --resume auto")

    def wait_for_batch(self, batch: int) -> TakenBatch:
        """The batch of this number; StopRequested if there will be none."""
        self.check_stop()
        return self._source.take(batch)

    def refill(self, batch: int, num_groups: int) -> bool:
        """Whether more groups will come from the source."""
        return self._source.refill()

    def training_steps(self) -> dict[int, int]:
        """Training step of every version that sampled a token of a batch so far."""
        return self._source.training_steps()

    def record(self, batch: int, training_step: int, verdicts: Sequence[GroupVerdict]) -> None:
        """Nothing."""

    def skip(self, batch: int, reason: EndReason) -> None:
        """Nothing."""

    def allocate_version(self, training_step: int) -> int:
        """A number for this process."""
        self._num_versions += 1
        return self._num_versions - 1

    def finish(self, batch: int, target: Target, engines: Sequence[EngineClient], *, is_announced: bool) -> None:
        """Nothing."""

    def announce(self, target: Target, engines: Sequence[EngineClient]) -> None:
        """Nothing."""

    def newest_version(self, training_step: int) -> int | None:
        """None: nothing is announced."""
        return None

    def open_evaluation(self, target: Target, entries: Sequence[TaskEntry]) -> bool:
        """Never: there is nobody to play."""
        return False

    def evaluation(self, policy_version: int) -> Evaluation | None:
        """None."""
        return None

    def mark_reported(self, policy_version: int) -> None:
        """Nothing."""

    def close_evaluation(self, policy_version: int, reason: str) -> None:
        """Nothing."""

    def wait_for_news(self) -> None:
        """Nothing to wait for."""

    def end(self, reason: EndReason, *, wait_s: float) -> None:
        """Nothing."""


class SilentPublisher:
    """Publishes nothing: no engine is to load the weights."""

    @property
    def problem(self) -> Mapping[str, str]:
        """None."""
        return {}

    def publish(self, policy_version: int, training_step: int, *, timeout_s: float) -> Published:
        """As if every engine had confirmed at once."""
        target = Target(policy_version=policy_version, training_step=training_step, folder=Path())
        return Published(target=target, confirmed=(), is_announced=True, save_s=0.0, load_s=0.0)

    def first_engine_missing(self, timeout_s: float) -> RuntimeError:
        """Never asked for: every version is announced."""
        return RuntimeError("a silent publisher misses no engine")


class SilentBoard:
    """Writes no measures: the leader writes the same."""

    def write(self, axis: str, position: int, values: Mapping[str, float | str | None]) -> None:
        """Nothing."""

    def alarm(self, rule: str, **fields: object) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
