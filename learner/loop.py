"""The training loop: take a batch, judge its groups, score, update, publish, checkpoint. Order: docs/training.md."""

from __future__ import annotations

from learner.batch import Batch
from learner.filters.selection import Selection
from learner.history import extend_history
from learner.ledger.records import BatchOutcome
from learner.phases import Parts, evaluate, finish_trained, publish_first, record_verdicts, save, train, write_measures
from learner.refill import gather
from learner.state import EndReason
from learner.update import select_groups


def run(parts: Parts) -> EndReason:
    """Train until the planned batches are consumed or a rule stops the run; the reason."""
    if end_reason(parts) is None or parts.pending_evaluations:
        publish_first(parts)
    while (reason := end_reason(parts)) is None:
        parts.desk.check_stop()
        batch = gather(parts)
        selection = select_groups(batch, parts.group_filter, parts.config.snr.score)
        record_verdicts(parts, batch, selection)
        skip_reason = empty_reason(batch, selection)
        if skip_reason is None:
            skip_reason = parts.stop_reason or train(parts, batch, selection)
        if skip_reason is None:
            finish_trained(parts, batch)
        else:
            parts.desk.skip(batch.taken.batch, skip_reason)
        advance(parts, batch, selection, skip_reason)
        write_measures(parts, batch, skip_reason)
        if skip_reason is None:
            evaluate(parts)
        if parts.state.training_step % parts.config.checkpoint.every == 0 or end_reason(parts) is not None:
            save(parts)
    return reason


def end_reason(parts: Parts) -> EndReason | None:
    """What an alarm said, COMPLETED after the planned batches, why too many in a row were skipped; else None."""
    if parts.stop_reason is not None:
        return parts.stop_reason
    if parts.state.batches_consumed >= parts.config.batch.num_batches:
        return EndReason.COMPLETED
    if parts.state.skipped_in_a_row >= parts.config.stop.max_skipped_in_a_row:
        return parts.state.skip_reason
    return None


def empty_reason(batch: Batch, selection: Selection) -> EndReason | None:
    """Why a batch has nothing to train; None if it has."""
    if not batch.groups:
        return EndReason.NO_GROUPS
    return EndReason.NO_SIGNAL if selection.is_empty else None


def advance(parts: Parts, batch: Batch, selection: Selection, skip_reason: EndReason | None) -> None:
    """Move the trainer state past a consumed batch. A skipped one raises no training step and appends no entropy."""
    state, was_trained = parts.state, skip_reason is None
    kept = sorted(selection.kept) if was_trained else []
    state.history_digest = extend_history(
        state.history_digest,
        batch=batch.taken.batch,
        outcome=BatchOutcome.TRAINED if was_trained else BatchOutcome.SKIPPED,
        training_step=state.training_step + (0 if was_trained else 1),
        trained=[batch.groups[index].taken for index in kept],
    )
    state.batches_consumed += 1
    state.skipped_in_a_row = 0 if was_trained else state.skipped_in_a_row + 1
    if was_trained:
        state.skip_reason = EndReason.NO_SIGNAL
    elif skip_reason not in (None, EndReason.NO_SIGNAL):
        # One batch that broke among many that were filtered is what somebody has to look at.
        state.skip_reason = skip_reason
    state.length_bias.observe(batch.taken, kept)
