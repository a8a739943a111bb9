"""Proof that nothing was lost and nothing trained twice: `python -m learner.ledger.audit runs/NAME`.

Reads the ledger and a checkpoint of a run whose learner is not running, and checks that in the history of the
checkpoint's weights every issued group was trained exactly once, filtered, skipped with its batch, or failed with a
reason. Importing this module loads no torch.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from dataclasses import dataclass, field
from pathlib import Path

from learner.checkpoint_files import CheckpointError, find_checkpoints, read_claim
from learner.history import EMPTY_HISTORY, HistoryClaim, extend_history
from learner.ledger.batches import BatchTable
from learner.ledger.records import BatchOutcome, TakenBatch
from learner.ledger.schema import open_ledger_file
from longturn.codec import trajectory_from_bytes


@dataclass(slots=True, kw_only=True)
class AuditReport:
    """Counts over the history of the weights; the proof holds iff `problems` is empty."""

    num_batches: int = 0
    num_training_steps: int = 0
    num_groups_trained: int = 0
    num_groups_filtered: int = 0
    num_groups_skipped: int = 0
    num_groups_failed: int = 0
    num_slots_closed: int = 0
    num_trajectories_trained: int = 0
    problems: list[str] = field(default_factory=list[str])

    @property
    def is_proven(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def audit(ledger_path: Path, checkpoint: HistoryClaim) -> AuditReport:
    """Check the ledger against a checkpoint's claim; ConfigError if there is no ledger."""
    connection = open_ledger_file(ledger_path, must_exist=True)
    try:
        return _Auditor(connection, checkpoint).run()
    finally:
        connection.close()


class _Auditor:
    def __init__(self, connection: sqlite3.Connection, checkpoint: HistoryClaim) -> None:
        self._connection = connection
        self._checkpoint = checkpoint
        facts = dict(connection.execute("SELECT name, value FROM meta").fetchall())
        self._run_id = facts["run_id"]
        self._groups_per_step = int(facts["batch.groups_per_step"])
        self._group_size = int(facts["batch.group_size"])
        self._batches = BatchTable(connection, groups_per_step=self._groups_per_step, clock=lambda: 0.0)
        self._report = AuditReport()
        self._seen: set[str] = set()

    def run(self) -> AuditReport:
        if self._checkpoint.run_id != self._run_id:
            self._problem(f"the checkpoint is of run {self._checkpoint.run_id}, the ledger of run {self._run_id}")
        digest, step = EMPTY_HISTORY, 0
        for batch in range(self._checkpoint.batches_consumed):
            digest, step = self._check_batch(batch, digest, step)
        if step != self._checkpoint.training_step:
            self._problem(f"the ledger trained {step} steps, the checkpoint says {self._checkpoint.training_step}")
        if digest != self._checkpoint.history_digest:
            self._problem("the digest of the checkpoint's history differs from the ledger's")
        self._check_slots()
        self._check_versions()
        self._report.num_batches = self._checkpoint.batches_consumed
        self._report.num_training_steps = step
        return self._report

    def _problem(self, text: str) -> None:
        self._report.problems.append(text)

    def _check_batch(self, batch: int, digest: str, step: int) -> tuple[str, int]:
        row = self._connection.execute("SELECT * FROM batches WHERE batch = ?", (batch,)).fetchone()
        taken = self._batches.take(batch)
        if row is None or row["outcome"] is None or taken is None:
            self._problem(f"batch {batch} lies before the checkpoint but was not consumed")
            return digest, step
        outcome = BatchOutcome(row["outcome"])
        if outcome is BatchOutcome.TRAINED:
            step += 1
            if row["training_step"] != step:
                self._problem(f"batch {batch} is training step {row['training_step']}, {step} was expected")
        elif not row["reason"]:
            self._problem(f"batch {batch} was skipped without a reason")
        kept = self._check_verdicts(taken, outcome)
        trained = [group for group in taken.groups if outcome is BatchOutcome.TRAINED and group.group_id in kept]
        self._count(taken, outcome, len(trained))
        digest = extend_history(
            digest, batch=batch, outcome=outcome, training_step=row["training_step"], trained=trained
        )
        return digest, step

    def _check_verdicts(self, taken: TakenBatch, outcome: BatchOutcome) -> set[str]:
        verdicts = dict(
            self._connection.execute(
                "SELECT group_id, verdict FROM verdicts WHERE batch = ?", (taken.batch,)
            ).fetchall()
        )
        for group in taken.groups:
            if group.group_id in self._seen:
                self._problem(f"group {group.group_id} lies in two batches")
            self._seen.add(group.group_id)
            if group.group_id not in verdicts:
                self._problem(f"group {group.group_id} of batch {taken.batch} has no verdict")
            self._check_members(group.group_id, [member.data for member in group.members])
        strangers = set(verdicts) - {group.group_id for group in taken.groups}
        if strangers:
            self._problem(f"batch {taken.batch} has verdicts on foreign groups {sorted(strangers)}")
        kept = {group_id for group_id, verdict in verdicts.items() if verdict == "kept"}
        if outcome is BatchOutcome.TRAINED and not kept:
            self._problem(f"batch {taken.batch} was trained without a kept group")
        return kept

    def _check_members(self, group_id: str, members: list[bytes]) -> None:
        identities = [trajectory_from_bytes(data).identity for data in members]
        wanted = [(self._run_id, group_id, index) for index in range(self._group_size)]
        found = [(i.run_id, i.group_id, i.member_index) for i in identities if i is not None]
        if found != wanted:
            self._problem(f"group {group_id} holds members {found}")

    def _count(self, taken: TakenBatch, outcome: BatchOutcome, num_trained: int) -> None:
        report = self._report
        if outcome is BatchOutcome.TRAINED:
            report.num_groups_trained += num_trained
            report.num_groups_filtered += len(taken.groups) - num_trained
            report.num_trajectories_trained += num_trained * self._group_size
        else:
            report.num_groups_skipped += len(taken.groups)
        report.num_groups_failed += len(taken.lost)
        report.num_slots_closed += taken.num_closed_slots
        if any(not lost.reason for lost in taken.lost):
            self._problem(f"batch {taken.batch} has a failed group without a reason")

    def _check_slots(self) -> None:
        positions = [
            row[0]
            for row in self._connection.execute("SELECT position FROM slots WHERE purpose = 'TRAIN' ORDER BY position")
        ]
        if positions != list(range(len(positions))):
            self._problem("the slots have a gap")
        doubled = self._connection.execute(
            "SELECT slot_id FROM groups WHERE state != 'FAILED' GROUP BY slot_id HAVING COUNT(*) > 1"
        ).fetchall()
        if doubled:
            self._problem(f"{len(doubled)} slots have two living groups")
        silent = self._connection.execute("SELECT COUNT(*) FROM slots WHERE state = 'CLOSED' AND reason IS NULL")
        if silent.fetchone()[0]:
            self._problem("a slot was closed without a reason")

    def _check_versions(self) -> None:
        rows = self._connection.execute(
            "SELECT policy_version, run_epoch FROM versions ORDER BY policy_version"
        ).fetchall()
        versions = [row["policy_version"] for row in rows]
        epochs = [row["run_epoch"] for row in rows]
        if versions != list(range(len(versions))) or epochs != sorted(epochs):
            self._problem("policy versions were reused or given out of order")


def newest_checkpoint(run_dir: Path) -> HistoryClaim:
    """The newest complete checkpoint's claim; CheckpointError if there is none."""
    found = find_checkpoints(run_dir / "checkpoints")
    if not found:
        raise CheckpointError(f"{run_dir} holds no complete checkpoint", reason="NO_CHECKPOINT")
    return read_claim(found[-1].path)


def main(arguments: list[str]) -> int:
    """Audit a run folder, print the report as JSON, and return the exit code."""
    run_dir = Path(arguments[0])
    report = audit(run_dir / "ledger.db", newest_checkpoint(run_dir))
    counts = {name: getattr(report, name) for name in AuditReport.__slots__}
    sys.stdout.write(json.dumps({"is_proven": report.is_proven, **counts}, indent=2) + "\n")
    return 0 if report.is_proven else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
