"""How far groups may run ahead of the learner: what bounds the staleness of the data."""

from __future__ import annotations


def slots_assignable_below(*, groups_per_step: int, max_policy_lag: int, batches_consumed: int) -> int:
    """Slots (or, with trajectories per batch, trajectories) below this number may have been handed out."""
    return (batches_consumed + max_policy_lag + 1) * groups_per_step
