"""A digest over everything that the current weights were trained on, in order.

The checkpoint carries the digest, the ledger carries the facts: if recomputing it from the ledger gives the same value,
both tell the same history (see `learner.ledger.audit`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from learner.ledger.records import BatchOutcome, TakenGroup

EMPTY_HISTORY = hashlib.sha256(b"longturn history").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryClaim:
    """What a checkpoint says of its own history."""

    run_id: str
    training_step: int
    batches_consumed: int
    history_digest: str


def extend_history(
    digest: str, *, batch: int, outcome: BatchOutcome, training_step: int, trained: Sequence[TakenGroup]
) -> str:
    """The digest after one more consumed batch; `trained` are the groups that entered the update, in slot order."""
    entry = {
        "batch": batch,
        "outcome": outcome.value,
        "training_step": training_step,
        "groups": [
            [group.group_id, [[member.member_index, member.attempt, member.digest] for member in group.members]]
            for group in trained
        ],
    }
    return hashlib.sha256((digest + json.dumps(entry)).encode()).hexdigest()
