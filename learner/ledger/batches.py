"""Batches: which are ready, what they hold, what the filter said, and what became of them.

Invariant: batches are consumed in order, each once in the history of the surviving weights.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from learner.ledger.records import BatchOutcome, GroupVerdict, LostGroup, StoredMember, TakenBatch, TakenGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How far the slots of a batch are, those of its refill among them."""

    num_complete: int
    num_closed: int
    num_open: int


class BatchTable:
    """Batches of one run. Every method runs inside the ledger's transaction."""

    def __init__(self, connection: sqlite3.Connection, *, groups_per_step: int, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._groups_per_step = groups_per_step
        self._clock = clock

    @property
    def num_consumed(self) -> int:
        """Batches that were trained or skipped."""
        return self._connection.execute("SELECT COUNT(*) FROM batches WHERE outcome IS NOT NULL").fetchone()[0]

    def progress(self, batch: int) -> BatchProgress:
        """How many of the batch's slots are complete, closed, or neither."""
        counts = dict(
            self._connection.execute(
                "SELECT state, COUNT(*) FROM slots WHERE purpose != 'EVAL' AND batch = ? GROUP BY state", (batch,)
            ).fetchall()
        )
        complete, closed = counts.get("COMPLETE", 0), counts.get("CLOSED", 0)
        num_slots = self._groups_per_step + self._num_refills(batch)
        return BatchProgress(num_complete=complete, num_closed=closed, num_open=num_slots - complete - closed)

    def _num_refills(self, batch: int) -> int:
        return self._connection.execute(
            "SELECT COUNT(*) FROM slots WHERE purpose = 'REFILL' AND batch = ?", (batch,)
        ).fetchone()[0]

    def take(self, batch: int) -> TakenBatch | None:
        """All complete groups of a batch, those of its refill last; None while a slot is open. Changes nothing."""
        progress = self.progress(batch)
        if progress.num_open:
            return None
        rows = self._connection.execute(
            "SELECT group_id, groups.state, groups.reason, issued_s, ended_s, position, kind FROM groups "
            "JOIN slots USING (slot_id) WHERE purpose != 'EVAL' AND batch = ? ORDER BY purpose DESC, position, ordinal",
            (batch,),
        ).fetchall()
        return TakenBatch(
            batch=batch,
            groups=tuple(self._group(row) for row in rows if row["state"] == "COMPLETE"),
            lost=tuple(_lost(row) for row in rows if row["state"] == "FAILED"),
            num_closed_slots=progress.num_closed,
            num_refills=self._num_refills(batch),
        )

    def _group(self, row: sqlite3.Row) -> TakenGroup:
        members = self._connection.execute(
            "SELECT member_index, attempt, trajectory FROM trajectories WHERE group_id = ? ORDER BY member_index",
            (row["group_id"],),
        )
        return TakenGroup(
            slot=row["position"],
            group_id=row["group_id"],
            kind=row["kind"],
            duration_s=row["ended_s"] - row["issued_s"],
            members=tuple(
                StoredMember(member_index=member["member_index"], attempt=member["attempt"], data=member["trajectory"])
                for member in members
            ),
        )

    def record(self, batch: int, *, training_step: int, run_epoch: int, verdicts: Sequence[GroupVerdict]) -> None:
        """Write down, before the step, what the batch holds and which training step it is meant for."""
        self._connection.execute(
            "INSERT INTO batches (batch, run_epoch, training_step, recorded_s) VALUES (?, ?, ?, ?)",
            (batch, run_epoch, training_step, self._clock()),
        )
        self._connection.executemany(
            "INSERT INTO verdicts VALUES (?, ?, ?, ?)",
            [(batch, verdict.group_id, verdict.verdict, verdict.score) for verdict in verdicts],
        )

    def consume(self, batch: int, outcome: BatchOutcome, reason: str = "") -> None:
        """Close a recorded batch; raise RuntimeError unless it is the next one."""
        if batch != self.num_consumed:
            raise RuntimeError(f"batch {batch} was to be consumed, the next one is {self.num_consumed}")
        changed = self._connection.execute(
            "UPDATE batches SET outcome = ?, reason = ?, consumed_s = ? WHERE batch = ? AND outcome IS NULL",
            (outcome.value, reason or None, self._clock(), batch),
        ).rowcount
        if changed != 1:
            raise RuntimeError(f"batch {batch} was never recorded")

    def reopen(self, *, batches_consumed: int, run_epoch: int) -> int:
        """Open every batch that the loaded weights do not hold, and leave its groups as they are; how many."""
        self._connection.execute(
            "INSERT INTO reopened SELECT ?, batch, training_step, outcome, reason FROM batches WHERE batch >= ?",
            (run_epoch, batches_consumed),
        )
        self._connection.execute("DELETE FROM verdicts WHERE batch >= ?", (batches_consumed,))
        return self._connection.execute("DELETE FROM batches WHERE batch >= ?", (batches_consumed,)).rowcount


def _lost(row: sqlite3.Row) -> LostGroup:
    return LostGroup(
        slot=row["position"], kind=row["kind"], duration_s=row["ended_s"] - row["issued_s"], reason=row["reason"]
    )
