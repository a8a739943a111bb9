"""Slots, groups and attempts: what is assigned to whom, and what came back.

Invariant: a slot has at most one group that is not FAILED; a member's trajectory is stored at most once; an attempt
number is issued here only and names one holder.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from learner.ledger.records import Assignment, Evaluation, Receipt, Submission
from learner.ledger.versions import VersionTable
from longturn.codec import task_from_proto, task_to_proto
from longturn.records import Purpose, Trajectory, TrajectoryIdentity
from longturn.task_file import TaskEntry
from longturn.v1 import environment_pb2

_MAX_START_SPREAD_STEPS = 1
"""A retried member starts within this many training steps of its group's first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRules:
    """What fixes the slots of a run."""

    run_id: str
    groups_per_step: int
    group_size: int
    max_slot_failures: int
    task_of_slot: Callable[[int], TaskEntry]
    task_of_refill: Callable[[int, int], TaskEntry]
    """By batch and number within the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """A group that is being played."""

    group_id: str
    attempt: int
    holder: bytes | None
    issued_s: float


class GroupTable:
    """Slots and groups of one run. Every method runs inside the ledger's transaction."""

    def __init__(
        self, connection: sqlite3.Connection, versions: VersionTable, rules: SlotRules, *, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._versions = versions
        self._rules = rules
        self._clock = clock

    # -- assignment

    def next_assignment(
        self, holder: bytes, *, slots_below: int, training_step: int, max_members: int | None
    ) -> Assignment | None:
        """Hand the most urgent group to `holder`: one that lost its holder, evaluation, a refill, a slot whose group
        failed, a new slot; None if there is none, or if it has more missing members than `max_members`. Of training
        slots only those below `slots_below` count: after a restart later ones may already be open. `training_step` is
        that of the announced version.
        """
        for group_id in self._unheld(slots_below):
            if max_members is not None and len(self._missing(group_id)) > max_members:
                return None
            assignment = self._reassign(group_id, holder, training_step)
            if assignment is not None:
                return assignment
        slot = self._connection.execute(
            "SELECT slot_id, group_size FROM slots WHERE state = 'OPEN' AND (purpose != 'TRAIN' OR position < ?) "
            "AND NOT EXISTS (SELECT 1 FROM groups WHERE groups.slot_id = slots.slot_id AND groups.state = 'OPEN') "
            "ORDER BY purpose, batch, position LIMIT 1",
            (slots_below,),
        ).fetchone()
        size = slot["group_size"] if slot else self._rules.group_size
        if max_members is not None and size > max_members:
            return None
        slot_id = slot["slot_id"] if slot else self._new_train_slot(slots_below)
        return None if slot_id is None else self._issue(slot_id, holder)

    def _unheld(self, slots_below: int) -> list[str]:
        rows = self._connection.execute(
            "SELECT group_id FROM groups JOIN slots USING (slot_id) WHERE groups.state = 'OPEN' AND holder IS NULL "
            "AND (purpose != 'TRAIN' OR position < ?) ORDER BY purpose, batch, position",
            (slots_below,),
        )
        return [row["group_id"] for row in rows]

    def _new_train_slot(self, slots_below: int) -> int | None:
        position = self._connection.execute(
            "SELECT COALESCE(MAX(position) + 1, 0) FROM slots WHERE purpose = 'TRAIN'"
        ).fetchone()[0]
        if position >= slots_below:
            return None
        batch = position // self._rules.groups_per_step
        return self._insert_slot("TRAIN", batch, position, self._rules.task_of_slot(position), self._rules.group_size)

    def open_refill(self, batch: int, num_groups: int) -> None:
        """Add places to a batch that is not consumed yet; they may be assigned at once."""
        found = self._connection.execute(
            "SELECT COUNT(*) FROM slots WHERE purpose = 'REFILL' AND batch = ?", (batch,)
        ).fetchone()[0]
        for index in range(found, found + num_groups):
            self._insert_slot("REFILL", batch, index, self._rules.task_of_refill(batch, index), self._rules.group_size)

    def open_evaluation(self, policy_version: int, entries: Sequence[TaskEntry], group_size: int) -> None:
        """Open one evaluation slot per entry for a version."""
        for position, entry in enumerate(entries):
            self._insert_slot("EVAL", policy_version, position, entry, group_size)

    def _insert_slot(self, purpose: str, batch: int, position: int, entry: TaskEntry, group_size: int) -> int:
        cursor = self._connection.execute(
            "INSERT INTO slots (purpose, batch, position, task, seed, kind, group_size) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                purpose,
                batch,
                position,
                task_to_proto(entry.task).SerializeToString(deterministic=True),
                str(entry.seed),
                entry.kind,
                group_size,
            ),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _issue(self, slot_id: int, holder: bytes) -> Assignment:
        slot = self._connection.execute("SELECT * FROM slots WHERE slot_id = ?", (slot_id,)).fetchone()
        ordinal = self._connection.execute("SELECT COUNT(*) FROM groups WHERE slot_id = ?", (slot_id,)).fetchone()[0]
        if slot["purpose"] == "TRAIN":
            group_id = f"t{slot['position']:06d}.{ordinal}"
        elif slot["purpose"] == "REFILL":
            group_id = f"r{slot['batch']:06d}.{slot['position']:04d}.{ordinal}"
        else:
            group_id = f"e{slot['batch']:06d}.{slot['position']:04d}.{ordinal}"
        self._connection.execute(
            "INSERT INTO groups (group_id, slot_id, ordinal, issued_s) VALUES (?, ?, ?, ?)",
            (group_id, slot_id, ordinal, self._clock()),
        )
        return self._start_attempt(group_id, 0, tuple(range(slot["group_size"])), holder)

    def _reassign(self, group_id: str, holder: bytes, training_step: int) -> Assignment | None:
        """Start the next attempt of an open group; None if it failed because the weights of its first member are too
        far away: too long ago, or lost in a restart and not yet trained again.
        """
        group = self._connection.execute("SELECT attempt FROM groups WHERE group_id = ?", (group_id,)).fetchone()
        first_step = self._first_step(group_id)
        if first_step is not None and abs(training_step - first_step) > _MAX_START_SPREAD_STEPS:
            message = f"its first member started at training step {first_step}, the policy is at {training_step}"
            self.fail(group_id, group["attempt"], "RETRY_TOO_LATE", message)
            return None
        return self._start_attempt(group_id, group["attempt"] + 1, self._missing(group_id), holder)

    def _start_attempt(self, group_id: str, attempt: int, members: tuple[int, ...], holder: bytes) -> Assignment:
        self._connection.execute(
            "UPDATE groups SET attempt = ?, holder = ? WHERE group_id = ?", (attempt, holder, group_id)
        )
        self._connection.execute(
            "INSERT INTO attempts VALUES (?, ?, ?, ?, ?)",
            (group_id, attempt, holder, json.dumps(members), self._clock()),
        )
        return self.assignment(group_id)

    def assignment(self, group_id: str) -> Assignment:
        """What the holder of an open group still has to play."""
        row = self._connection.execute(
            "SELECT groups.attempt, slots.* FROM groups JOIN slots USING (slot_id) WHERE group_id = ?", (group_id,)
        ).fetchone()
        entry = TaskEntry(
            task=task_from_proto(environment_pb2.Task.FromString(row["task"])), seed=int(row["seed"]), kind=row["kind"]
        )
        return Assignment(
            group_id=group_id,
            attempt=row["attempt"],
            entry=entry,
            member_indices=self._missing(group_id),
            group_size=row["group_size"],
            purpose=Purpose.EVAL if row["purpose"] == "EVAL" else Purpose.TRAIN,
            min_policy_version=row["batch"] if row["purpose"] == "EVAL" else 0,
            max_policy_version=self._newest_start(group_id),
        )

    def _missing(self, group_id: str) -> tuple[int, ...]:
        size = self._connection.execute(
            "SELECT group_size FROM groups JOIN slots USING (slot_id) WHERE group_id = ?", (group_id,)
        ).fetchone()[0]
        stored = {
            row[0]
            for row in self._connection.execute("SELECT member_index FROM trajectories WHERE group_id = ?", (group_id,))
        }
        return tuple(index for index in range(size) if index not in stored)

    def _first_step(self, group_id: str) -> int | None:
        return self._connection.execute(
            "SELECT MIN(training_step) FROM trajectories JOIN versions ON policy_version = start_version "
            "WHERE group_id = ?",
            (group_id,),
        ).fetchone()[0]

    def _newest_start(self, group_id: str) -> int | None:
        """Highest version that a member may start with; None if no member is stored yet."""
        first_step = self._first_step(group_id)
        if first_step is None:
            return None
        newest, newest_step = self._connection.execute(
            "SELECT MAX(policy_version), training_step FROM versions WHERE training_step <= ?",
            (first_step + _MAX_START_SPREAD_STEPS,),
        ).fetchone()
        # Versions to be given out next hold the next training steps, of which some are still near enough.
        return newest + first_step + _MAX_START_SPREAD_STEPS - newest_step

    # -- what comes back

    def classify(self, identity: TrajectoryIdentity) -> tuple[Receipt, str]:
        """What would become of a trajectory of this identity; the text says why. Changes nothing."""
        if identity.run_id != self._rules.run_id:
            return Receipt.REFUSED, "UNKNOWN_RUN"
        group = self._connection.execute(
            "SELECT groups.*, group_size FROM groups JOIN slots USING (slot_id) WHERE group_id = ?",
            (identity.group_id,),
        ).fetchone()
        if group is None or not 0 <= identity.member_index < group["group_size"] or identity.attempt > group["attempt"]:
            return Receipt.REFUSED, "NOT_ASSIGNED"
        stored = self._connection.execute(
            "SELECT attempt FROM trajectories WHERE group_id = ? AND member_index = ?",
            (identity.group_id, identity.member_index),
        ).fetchone()
        if stored is not None:
            same = stored["attempt"] == identity.attempt
            return (Receipt.DUPLICATE, "") if same else (Receipt.SUPERSEDED, "MEMBER_STORED")
        if group["state"] != "OPEN":
            return Receipt.SUPERSEDED, "GROUP_CLOSED"
        if identity.attempt < group["attempt"]:
            return Receipt.SUPERSEDED, "OLDER_ATTEMPT"
        return Receipt.ACCEPTED, ""

    def submit(self, submission: Submission) -> tuple[Receipt, str]:
        """Store a trajectory unless it is a repeat, too old or unknown; the text says why."""
        identity = submission.trajectory.identity
        if identity is None:
            return Receipt.REFUSED, "NO_IDENTITY"
        receipt, reason = self.classify(identity)
        if receipt is not Receipt.ACCEPTED:
            return receipt, reason
        return self._store(submission, identity.group_id, identity.member_index, identity.attempt)

    def _store(self, submission: Submission, group_id: str, member_index: int, attempt: int) -> tuple[Receipt, str]:
        trajectory = submission.trajectory
        start_hash = _start_hash(trajectory)
        other = self._connection.execute(
            "SELECT start_hash FROM trajectories WHERE group_id = ? LIMIT 1", (group_id,)
        ).fetchone()
        if other is not None and other[0] != start_hash:
            return Receipt.REFUSED, "START_MISMATCH"
        self._connection.execute(
            "INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?)",
            (group_id, member_index, attempt, _start_version(trajectory), start_hash, submission.data, self._clock()),
        )
        if not self._missing(group_id):
            self._connection.execute(
                "UPDATE groups SET state = 'COMPLETE', holder = NULL, ended_s = ? WHERE group_id = ?",
                (self._clock(), group_id),
            )
            self._connection.execute(
                "UPDATE slots SET state = 'COMPLETE' WHERE slot_id = (SELECT slot_id FROM groups WHERE group_id = ?)",
                (group_id,),
            )
        return Receipt.ACCEPTED, ""

    def fail(self, group_id: str, attempt: int, reason: str, message: str) -> bool:
        """Give an open group up; its slot takes a new group, or closes after `max_slot_failures`.

        False if the attempt is not the current one or the group is no longer open: nothing changed.
        """
        group = self._connection.execute(
            "SELECT slot_id FROM groups WHERE group_id = ? AND attempt = ? AND state = 'OPEN'", (group_id, attempt)
        ).fetchone()
        if group is None:
            return False
        self._connection.execute(
            "UPDATE groups SET state = 'FAILED', holder = NULL, reason = ?, message = ?, ended_s = ? "
            "WHERE group_id = ?",
            (reason or "UNKNOWN", message, self._clock(), group_id),
        )
        num_failures = self._connection.execute(
            "SELECT COUNT(*) FROM groups WHERE slot_id = ? AND state = 'FAILED'", (group["slot_id"],)
        ).fetchone()[0]
        if num_failures >= self._rules.max_slot_failures:
            self._connection.execute(
                "UPDATE slots SET state = 'CLOSED', reason = ? WHERE slot_id = ?",
                (f"{num_failures} groups failed, the last with {reason or 'UNKNOWN'}", group["slot_id"]),
            )
        return True

    def release(self, holder: bytes) -> int:
        """Take everything from a holder that is gone; the number of groups it held."""
        return self._connection.execute(
            "UPDATE groups SET holder = NULL WHERE state = 'OPEN' AND holder = ?", (holder,)
        ).rowcount

    def open_groups(self, holder: bytes | None = None, *, older_than_s: float | None = None) -> list[OpenGroup]:
        """Groups that are being played, by one holder or by all, whose attempt is older than `older_than_s`.

        No attempt is older than the run epoch: while no learner ran, nobody could have ended it.
        """
        rows = self._connection.execute(
            "SELECT groups.group_id, groups.attempt, groups.holder, attempts.issued_s FROM groups "
            "JOIN attempts USING (group_id, attempt) WHERE state = 'OPEN' AND groups.holder IS NOT NULL "
            "AND (?1 IS NULL OR groups.holder = ?1) AND (?2 IS NULL OR "
            "MAX(attempts.issued_s, (SELECT COALESCE(MAX(started_s), 0) FROM epochs)) <= ?2)",
            (holder, None if older_than_s is None else self._clock() - older_than_s),
        )
        return [OpenGroup(**dict(row)) for row in rows]

    # -- evaluation

    def close_evaluation(self, policy_version: int, reason: str) -> None:
        """Close the slots of an evaluation that are still open."""
        self._connection.execute(
            "UPDATE groups SET state = 'FAILED', holder = NULL, reason = ?, ended_s = ? WHERE state = 'OPEN' "
            "AND slot_id IN (SELECT slot_id FROM slots WHERE purpose = 'EVAL' AND batch = ?)",
            (reason, self._clock(), policy_version),
        )
        self._connection.execute(
            "UPDATE slots SET state = 'CLOSED', reason = ? WHERE purpose = 'EVAL' AND state = 'OPEN' AND batch = ?",
            (reason, policy_version),
        )

    def drop_evaluations_after(self, training_step: int) -> None:
        """After a restart: give up unreported evaluations of weights that are lost; their step brings them up again."""
        for version in self.pending_evaluations():
            step = self._versions.training_step(version)
            if step is not None and step > training_step:
                self.close_evaluation(version, "RESTARTED")
                self._connection.execute(
                    "UPDATE slots SET state = 'CLOSED', reason = 'RESTARTED' WHERE purpose = 'EVAL' AND batch = ?",
                    (version,),
                )

    def pending_evaluations(self) -> list[int]:
        """Versions, oldest first, whose evaluation has an open slot or a complete one that no row reports yet."""
        rows = self._connection.execute(
            "SELECT DISTINCT batch FROM slots WHERE purpose = 'EVAL' AND (state = 'OPEN' OR state = 'COMPLETE' AND "
            "reason IS NULL) ORDER BY batch"
        )
        return [row[0] for row in rows]

    def mark_reported(self, policy_version: int) -> None:
        """Record that the row of an evaluation is written."""
        self._connection.execute(
            "UPDATE slots SET reason = 'REPORTED' WHERE purpose = 'EVAL' AND state = 'COMPLETE' AND batch = ?",
            (policy_version,),
        )

    def is_evaluated(self, training_step: int) -> bool:
        """Whether an evaluation of this training step is played, or was with at least one trajectory."""
        row = self._connection.execute(
            "SELECT 1 FROM slots JOIN versions ON policy_version = batch WHERE purpose = 'EVAL' AND state != 'CLOSED' "
            "AND training_step = ? LIMIT 1",
            (training_step,),
        ).fetchone()
        return row is not None

    def evaluation(self, policy_version: int) -> Evaluation | None:
        """The finished evaluation of a version; None while a slot is open or if it was never opened."""
        states = [
            row[0]
            for row in self._connection.execute(
                "SELECT state FROM slots WHERE purpose = 'EVAL' AND batch = ?", (policy_version,)
            )
        ]
        if not states or "OPEN" in states:
            return None
        rows = self._connection.execute(
            "SELECT trajectory FROM trajectories JOIN groups USING (group_id) JOIN slots USING (slot_id) "
            "WHERE purpose = 'EVAL' AND batch = ? AND groups.state = 'COMPLETE' ORDER BY position, member_index",
            (policy_version,),
        )
        return Evaluation(
            policy_version=policy_version,
            num_closed_slots=states.count("CLOSED"),
            trajectories=tuple(row[0] for row in rows),
        )


def _start_version(trajectory: Trajectory) -> int:
    return next((span.policy_version for turn in trajectory.turns for span in turn.policy_spans), 0)


def _start_hash(trajectory: Trajectory) -> bytes:
    """What every member of a group must share: the start of its episode."""
    return trajectory.initial_state_hash or hashlib.sha256(trajectory.initial_observation.encode()).digest()
