"""Dynamic sampling (DAPO, Yu et al. 2025): groups without signal are made up for by further ones of the same batch.

Asked for are as many groups as the batch lacks of `batch.groups_per_step` ones whose members did not all do alike, at
most `batch.max_refill` in all; then the filter judges everything that was generated. How many are asked for follows
from what the batch holds alone, so a batch that is taken again after a restart comes out the same.
"""

from __future__ import annotations

from learner.batch import Batch, build_batch
from learner.filters.variance_mass import ZERO_VARIANCE
from learner.phases import Parts
from learner.update import group_scores


def gather(parts: Parts) -> Batch:
    """The next batch, with its refill."""
    number = parts.state.batches_consumed
    while True:
        with parts.clock.phase("wait_actors"):
            taken = parts.desk.wait_for_batch(number)
        batch = build_batch(taken, parts.batch_options)
        num_wanted = num_lacking(parts, batch)
        if not num_wanted or not parts.desk.refill(number, num_wanted):
            return batch


def num_lacking(parts: Parts, batch: Batch) -> int:
    """Groups to ask for."""
    config = parts.config
    zero = ZERO_VARIANCE * config.snr.success_reward**2
    num_with_signal = sum(score > zero for score in group_scores(batch, config.snr.score))
    return max(
        0, min(config.batch.groups_per_step - num_with_signal, config.batch.max_refill - batch.taken.num_refills)
    )
