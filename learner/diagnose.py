"""Diagnosis of a run that is over, from its ledger and its checkpoints: `longturn diagnose RUN`.

Per batch, without any model: success and the entropy of early and late turns, as the mean of -log of the probability
each token was sampled with (an unbiased estimate of the sampler's entropy), and the cascade alarms that follow. Per
checkpoint, with its weights, on the last batch that they were trained on: entropies over the whole vocabulary, mutual
information of prompt and reasoning, and the regime. Nothing in the run is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from learner.batch import Batch, BatchOptions, build_batch, tensors_of
from learner.checkpoint_files import find_checkpoints
from learner.config import LearnConfig
from learner.diagnostics.cascade import CascadeTracker
from learner.diagnostics.regimes import RegimeTracker
from learner.ledger.recorded import RecordedBatches
from learner.measures import Measures, cascade_measures, entropy_measures
from learner.model import PolicyModel
from learner.options import batch_options
from learner.probe import probe
from learner.step_terms import Scores
from learner.update import score_rows
from longturn.report.ledger import open_read_only

logger = logging.getLogger(__name__)
_ANY_ID = 2**31


def diagnose(config: LearnConfig, run_dir: Path, *, num_samples: int) -> dict[str, list[Measures]]:
    """Rows of the batches and of the checkpoints; ConfigError without a ledger."""
    with open_read_only(run_dir / "ledger.db") as connection:
        recorded = RecordedBatches(connection)
        return {
            "batches": list(_batch_rows(recorded, batch_options(config, vocabulary_size=_ANY_ID))),
            "checkpoints": list(_checkpoint_rows(config, run_dir, recorded, num_samples=num_samples)),
        }


def _batch_rows(recorded: RecordedBatches, options: BatchOptions) -> Iterator[Measures]:
    tracker = CascadeTracker()
    for number in range(recorded.num_consumed):
        batch = _batch(recorded, number, options)
        row: Measures = {"batch": number, "groups": len(batch.groups)}
        if batch.groups:
            pool = tensors_of(batch)
            sampled = Scores(logprobs_N=pool.behavior_logprobs_N, entropies_N=-pool.behavior_logprobs_N)
            found = entropy_measures(pool, sampled)
            row["learner/episode/success_mean"] = _success(batch)
            row |= {name: found[name] for name in _ENTROPIES}
            row |= cascade_measures(tracker, row, pool.layout.num_trajectories)
        yield row


_ENTROPIES = ("learner/entropy/token_mean", "learner/entropy/early_third", "learner/entropy/late_third")


def _checkpoint_rows(
    config: LearnConfig, run_dir: Path, recorded: RecordedBatches, *, num_samples: int
) -> Iterator[Measures]:
    tracker, temperature = RegimeTracker(), config.play.temperature
    for found in find_checkpoints(run_dir / "checkpoints"):
        number = found.batches_consumed - 1
        if number < 0 or number >= recorded.num_consumed:
            continue
        model = PolicyModel.load(found.path, device=config.model.device)
        batch = _batch(recorded, number, batch_options(config, vocabulary_size=model.vocabulary_size))
        row: Measures = {"checkpoint": found.path.name, "training_step": found.training_step, "batch": number}
        logger.info("diagnosing", extra=row)
        if batch.groups:
            pool = tensors_of(batch)
            measured = entropy_measures(pool, score_rows(model, pool, temperature=temperature))
            row |= {name: measured[name] for name in _ENTROPIES}
            row |= probe(
                model,
                batch,
                tracker,
                num_samples=num_samples,
                temperature=temperature,
                seed=f"{config.seed}/probe/{found.training_step}",
            )
        yield row


def _batch(recorded: RecordedBatches, number: int, options: BatchOptions) -> Batch:
    taken = recorded.take(number)
    if taken is None:
        raise ValueError(f"batch {number} was not consumed")
    return build_batch(taken, options)


def _success(batch: Batch) -> float:
    members = batch.members
    return sum(member.trajectory.success for member in members) / len(members)
