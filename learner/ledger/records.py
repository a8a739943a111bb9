"""What the ledger takes in and hands out."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from longturn.records import Purpose, Trajectory
from longturn.task_file import TaskEntry


class BatchOutcome(enum.StrEnum):
    """What became of a batch."""

    TRAINED = "TRAINED"
    SKIPPED = "SKIPPED"


class Receipt(enum.Enum):
    """What became of a trajectory that was handed in; the numbers are those of AckVerdict on the wire."""

    ACCEPTED = 1
    DUPLICATE = 2
    SUPERSEDED = 3
    REFUSED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A group, or the missing part of one, for one holder."""

    group_id: str
    attempt: int
    entry: TaskEntry
    member_indices: tuple[int, ...]
    group_size: int
    purpose: Purpose
    min_policy_version: int = 0
    max_policy_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """One member's trajectory as it came."""

    member_index: int
    attempt: int
    data: bytes

    @property
    def digest(self) -> str:
        """Hex digest of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenGroup:
    """A complete group, members in order; `slot` is its place in the run, or of a refill in its batch.

    Durations are seconds from its first assignment to its last member.
    """

    slot: int
    group_id: str
    kind: str
    duration_s: float
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGroup:
    """A group of the batch's slots that failed."""

    slot: int
    kind: str
    duration_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBatch:
    """All complete groups of a batch in slot order, and what its slots lost."""

    batch: int
    groups: tuple[TakenGroup, ...]
    lost: tuple[LostGroup, ...]
    num_closed_slots: int
    num_refills: int = 0
    """Places that were added because others held no signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVerdict:
    """What the filter said about a group."""

    group_id: str
    verdict: str
    score: float

    @property
    def is_kept(self) -> bool:
        """Whether its rows enter the update."""
        return self.verdict == "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A trajectory that was handed in: parsed once, stored as it came."""

    trajectory: Trajectory
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Finished evaluation groups that were opened for a policy version; newer ones may have played them.

    `trajectories` are serialised, in panel order.
    """

    policy_version: int
    num_closed_slots: int
    trajectories: tuple[bytes, ...]
