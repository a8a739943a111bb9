"""Policy versions and run epochs: never reused, whatever is killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable


class VersionTable:
    """Maps every policy version that was ever given out to its training step."""

    def __init__(self, connection: sqlite3.Connection, *, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock

    @property
    def run_epoch(self) -> int:
        """The newest epoch; 0 before the first start."""
        return self._connection.execute("SELECT COALESCE(MAX(run_epoch), 0) FROM epochs").fetchone()[0]

    def start_epoch(self, *, training_step: int, batches_consumed: int, config_digest: str) -> int:
        """Begin the epoch of this start of the learner and return its number, from 1."""
        run_epoch = self.run_epoch + 1
        self._connection.execute(
            "INSERT INTO epochs VALUES (?, ?, ?, ?, ?)",
            (run_epoch, training_step, batches_consumed, config_digest, self._clock()),
        )
        return run_epoch

    def allocate(self, training_step: int) -> int:
        """Give out the version that the weights of `training_step` are published as: one above every earlier one."""
        highest = self._connection.execute("SELECT COALESCE(MAX(policy_version), -1) FROM versions").fetchone()[0]
        self._connection.execute(
            "INSERT INTO versions (policy_version, run_epoch, training_step) VALUES (?, ?, ?)",
            (highest + 1, self.run_epoch, training_step),
        )
        return highest + 1

    def mark_announced(self, policy_version: int) -> None:
        """Record that at least one engine confirmed the version."""
        self._connection.execute(
            "UPDATE versions SET announced_s = ? WHERE policy_version = ?", (self._clock(), policy_version)
        )

    def newest(self, training_step: int) -> int | None:
        """The newest announced version of a training step; None if there is none."""
        return self._connection.execute(
            "SELECT MAX(policy_version) FROM versions WHERE training_step = ? AND announced_s IS NOT NULL",
            (training_step,),
        ).fetchone()[0]

    def training_step(self, policy_version: int) -> int | None:
        """Training step of a version; None if it was never given out."""
        row = self._connection.execute(
            "SELECT training_step FROM versions WHERE policy_version = ?", (policy_version,)
        ).fetchone()
        return None if row is None else row[0]

    def training_steps(self) -> dict[int, int]:
        """Training step of every version."""
        return dict(self._connection.execute("SELECT policy_version, training_step FROM versions").fetchall())
