"""Does the reasoning still depend on the input? Cross-scores some turns of a batch under the current weights.

X is everything up to and including the opening tag, Z the reasoning between the tags (RAGEN-2). `first_turn` compares
the groups' initial prompts, `any_turn` draws a trajectory, then one of its turns, and compares the drawn turns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from learner.batch import Batch
from learner.diagnostics.cross_scoring import cross_score
from learner.diagnostics.mi import CrossScores, estimate, retrieval
from learner.diagnostics.regimes import RegimeTracker
from learner.model import PolicyModel
from longturn.records import RenderMode, Trajectory

_MIN_SAMPLES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSample:
    """Reasoning ids and the ids it was conditioned on."""

    prompt_ids: tuple[int, ...]
    reasoning_ids: tuple[int, ...]


def probe(
    model: PolicyModel, batch: Batch, tracker: RegimeTracker, *, num_samples: int, temperature: float, seed: str
) -> dict[str, float | str]:
    """Metrics of both scopes, and the regime by the first turn; empty if the batch holds too little reasoning."""
    order = random.Random(seed)
    metrics: dict[str, float | str] = {}
    for scope, samples in (
        ("first_turn", first_turn_samples(batch, num_samples, order)),
        ("any_turn", any_turn_samples(batch, num_samples, order)),
    ):
        if len(samples) < _MIN_SAMPLES:
            continue
        scores = _cross_scores(model, samples, temperature)
        if scores.num_prompts < _MIN_SAMPLES:
            continue
        metrics.update(_scope_metrics(scope, scores))
        if scope == "first_turn":
            found = retrieval(scores)
            reading = tracker.observe(
                retrieval_accuracy=found.accuracy,
                chance=found.chance,
                h_z_given_x=estimate(scores, "per_token_paper").h_z_given_x,
            )
            metrics["learner/mi/regime"] = reading.regime.value
            metrics["learner/mi/regime_alarm"] = reading.alarm.value if reading.alarm else ""
    metrics["learner/reasoning/valid_share"] = _valid_share(batch)
    return metrics


def _scope_metrics(scope: str, scores: CrossScores) -> dict[str, float | str]:
    sequence, token, found = estimate(scores, "seq"), estimate(scores, "per_token_paper"), retrieval(scores)
    return {
        f"learner/mi/{scope}_seq": sequence.mi,
        f"learner/mi/{scope}_token": token.mi,
        f"learner/mi/{scope}_z": token.z_score,
        f"learner/mi/{scope}_h_z_given_x": token.h_z_given_x,
        f"learner/mi/{scope}_h_z": token.h_z,
        f"learner/mi/{scope}_retrieval": found.accuracy,
        f"learner/mi/{scope}_chance": found.chance,
        f"learner/mi/{scope}_num_prompts": scores.num_prompts,
    }


def _cross_scores(model: PolicyModel, samples: Sequence[ReasoningSample], temperature: float) -> CrossScores:
    prompts = list(dict.fromkeys(sample.prompt_ids for sample in samples))
    return CrossScores(
        logprob_sums_SP=cross_score(
            model.module,  # type: ignore[arg-type]  # a transformers model
            prompts,
            [sample.reasoning_ids for sample in samples],
            temperature=temperature,
        ),
        num_tokens_S=torch.tensor([len(sample.reasoning_ids) for sample in samples]),
        column_S=torch.tensor([prompts.index(sample.prompt_ids) for sample in samples]),
    )


def first_turn_samples(batch: Batch, num_samples: int, order: random.Random) -> list[ReasoningSample]:
    """Reasoning of first turns, without replacement."""
    members = [member.trajectory for member in batch.members]
    found = [sample for trajectory in members if (sample := sample_of(trajectory, 0)) is not None]
    order.shuffle(found)
    return found[:num_samples]


def any_turn_samples(batch: Batch, num_samples: int, order: random.Random) -> list[ReasoningSample]:
    """A trajectory uniformly, then one of its turns, with replacement; turns without reasoning are left out."""
    members = [member.trajectory for member in batch.members if member.trajectory.turns]
    drawn = [order.choice(members) for _ in range(num_samples)] if members else []
    samples = [sample_of(trajectory, order.randrange(len(trajectory.turns))) for trajectory in drawn]
    return [sample for sample in samples if sample is not None]


def sample_of(trajectory: Trajectory, turn_index: int) -> ReasoningSample | None:
    """The reasoning of a turn and its context; None if there is none."""
    if turn_index >= len(trajectory.turns):
        return None
    turn = trajectory.turns[turn_index]
    span = turn.reasoning_span
    if span is None or span.start == span.end:
        return None
    earlier: list[int] = []
    if trajectory.render_mode is RenderMode.APPEND:
        for before in trajectory.turns[:turn_index]:
            earlier.extend((*before.prompt_ids, *before.completion_ids))
    prompt = (*earlier, *turn.prompt_ids, *turn.completion_ids[: span.start])
    return ReasoningSample(prompt_ids=prompt, reasoning_ids=turn.completion_ids[span.start : span.end])


def _valid_share(batch: Batch) -> float:
    turns = [turn for member in batch.members for turn in member.trajectory.turns]
    with_reasoning = sum(
        turn.reasoning_span is not None and turn.reasoning_span.end > turn.reasoning_span.start for turn in turns
    )
    return with_reasoning / max(1, len(turns))
