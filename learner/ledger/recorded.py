"""The batches of a run, read from its ledger and never written. Loads no torch."""

from __future__ import annotations

import sqlite3
import time

from learner.ledger.batches import BatchTable
from learner.ledger.records import TakenBatch
from learner.ledger.versions import VersionTable
from longturn.codec import trajectory_from_bytes
from longturn.errors import ConfigError


class RecordedBatches:
    """What a run consumed, in the history of its newest weights."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """The connection may be read-only; it must be used by this thread alone."""
        connection.row_factory = sqlite3.Row
        self._facts = {row["name"]: row["value"] for row in connection.execute("SELECT name, value FROM meta")}
        self._batches = BatchTable(
            connection, groups_per_step=int(self._facts["batch.groups_per_step"]), clock=time.time
        )
        self._versions = VersionTable(connection, clock=time.time)

    @property
    def run_id(self) -> str:
        """Of the run: its trajectories bear it."""
        return self._facts["run_id"]

    @property
    def num_consumed(self) -> int:
        """Batches that were trained or skipped."""
        return self._batches.num_consumed

    def check_shape(self, groups_per_step: int, group_size: int) -> None:
        """ConfigError unless batches have this shape."""
        shape = {"batch.groups_per_step": groups_per_step, "batch.group_size": group_size}
        for name, value in shape.items():
            if self._facts[name] != str(value):
                raise ConfigError(f"learner.{name} is {value}, the ledger was recorded with {self._facts[name]}")

    def check_tokenizer(self, tokenizer_hash: str) -> None:
        """ConfigError if the ids of the first trajectory are another tokenizer's."""
        first = self.take(0)
        if first is None or not first.groups:
            return
        recorded = trajectory_from_bytes(first.groups[0].members[0].data).tokenizer_hash
        if recorded not in ("", tokenizer_hash):
            raise ConfigError("learner.model.path: the ledger's ids are of another tokenizer than the model's")

    def take(self, batch: int) -> TakenBatch | None:
        """A batch as it was trained or skipped; None beyond the last one."""
        return self._batches.take(batch) if batch < self.num_consumed else None

    def training_steps(self) -> dict[int, int]:
        """Training step of every version."""
        return self._versions.training_steps()
