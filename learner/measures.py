"""What is measured about a batch and its update, as metric rows. Pure: takes results, gives names and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from learner.batch import Batch, BatchTensors, Member
from learner.diagnostics.cascade import CascadeMeasurement, CascadeTracker
from learner.diagnostics.repetition import ActedTurn, rates, repeated_token_share, repetition_counts
from learner.diagnostics.staleness import StepSpan, lag
from learner.diagnostics.turn_entropy import early_late_thirds, entropy_by_turn
from learner.filters.scores import rv_std_over_mean
from learner.filters.selection import Selection
from learner.filters.shadow import GroupFacts
from learner.layout import turn_positions
from learner.length_bias import duration_bucket
from learner.losses.epo import EpoOptions, EpoStep, corridor_occupancy, gradient_shares
from learner.losses.kl import k1, k3
from learner.losses.statistics import mismatch_by_bucket, mismatch_statistics, update_statistics
from learner.update import Scores, StepTerms, UpdateOptions, UpdateResult
from longturn.records import Trajectory

Measures = dict[str, float | str | None]


def batch_measures(batch: Batch, selection: Selection) -> Measures:
    """Returns, success and the filter's verdicts over all groups of the batch."""
    members = batch.members
    verdicts = Counter(verdict.value for verdict in selection.verdicts)
    lost = Counter(group.reason for group in batch.taken.lost)
    measures: Measures = {
        "learner/group/generated": len(batch.groups),
        "learner/group/kept": len(selection.kept),
        "learner/group/kept_mass": selection.kept_mass,
        "learner/group/lost": len(batch.taken.lost),
        "learner/group/closed_slots": batch.taken.num_closed_slots,
        "learner/group/refills": batch.taken.num_refills,
        "learner/group/rv_std_over_mean": rv_std_over_mean(selection.scores),
    }
    measures.update({f"learner/group/verdict_{name}": count for name, count in sorted(verdicts.items())})
    measures.update({f"learner/group/lost_{name.lower()}": count for name, count in sorted(lost.items())})
    return measures | (_member_measures(members) if members else {})


def _member_measures(members: Sequence[Member]) -> Measures:
    trajectories = [member.trajectory for member in members]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    reasoning = [span.end - span.start for turn in turns if (span := turn.reasoning_span) is not None]
    return {
        "learner/episode/success_mean": fmean(trajectory.success for trajectory in trajectories),
        "learner/episode/return_mean": fmean(trajectory.episode_return for trajectory in trajectories),
        "learner/episode/shaped_return_mean": fmean(member.shaped_return for member in members),
        "learner/episode/turns_mean": len(turns) / len(trajectories),
        "learner/episode/duration_s": fmean(trajectory.duration_s for trajectory in trajectories),
        "learner/episode/invalid_turn_share": fmean(not turn.action_valid for turn in turns),
        "learner/episode/malformed_turn_share": fmean(not turn.format_valid for turn in turns),
        "learner/episode/used_privileged_share": fmean(trajectory.used_privileged for trajectory in trajectories),
        "learner/reasoning/tokens_mean": fmean(reasoning) if reasoning else None,
        "learner/reasoning/repeated_token_share": repeated_token_share(turn.completion_ids for turn in turns),
        "learner/row/breaks": sum(member.rows.num_breaks for member in members),
        **{f"learner/episode/{name}_share": rate for name, rate in _repetition(trajectories).items()},
    }


def _repetition(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counts = Counter[str]()
    for trajectory in trajectories:
        counts.update(repetition_counts(_acted_turns(trajectory)))
    return {name: rate for name, rate in rates(counts).items() if name.startswith("repeat")}


def _acted_turns(trajectory: Trajectory) -> list[ActedTurn]:
    states = [
        trajectory.initial_state_hash or trajectory.initial_observation,
        *(turn.state_hash or turn.observation for turn in trajectory.turns),
    ]
    return [
        ActedTurn(
            action=turn.action,
            is_available=turn.action_valid,
            format_valid=turn.format_valid,
            state=states[index],
            next_state=states[index + 1],
        )
        for index, turn in enumerate(trajectory.turns)
    ]


def lag_measures(batch: Batch, training_steps: Mapping[int, int], current_step: int) -> Measures:
    """Age of the batch's tokens in training steps, and groups whose members started more than one step apart.

    Tokens of weights that were lost in a restart count as being of the current step.
    """
    spans: list[StepSpan] = []
    num_wide = 0
    for group in batch.groups:
        starts: list[int] = []
        for member in group.members:
            own = [
                StepSpan(
                    training_step=_step_of(span.policy_version, training_steps, current_step),
                    num_tokens=span.end - span.start,
                )
                for turn in member.trajectory.turns
                for span in turn.policy_spans
            ]
            spans.extend(own)
            starts.append(own[0].training_step)
        num_wide += max(starts) - min(starts) > 1
    if not spans:
        return {}
    found = lag(spans, current_step)
    return {
        "learner/lag/head": found.head,
        "learner/lag/tail": found.tail,
        "learner/lag/token_mean": found.token_weighted,
        "learner/lag/wide_groups": num_wide,
    }


def group_facts(batch: Batch, training_steps: Mapping[int, int], current_step: int) -> list[GroupFacts]:
    """Kind, duration and age of each group."""
    return [
        GroupFacts(
            kind=group.taken.kind,
            duration=duration_bucket(group.taken.duration_s),
            lag=max(
                (
                    current_step - _step_of(span.policy_version, training_steps, current_step)
                    for member in group.members
                    for turn in member.trajectory.turns
                    for span in turn.policy_spans
                ),
                default=0,
            ),
        )
        for group in batch.groups
    ]


def token_lags(kept: BatchTensors, training_steps: Mapping[int, int], current_step: int) -> Tensor:
    """Training steps since each trained token was sampled; 0 for weights that were lost in a restart."""
    versions = [version for row in kept.rows for version in row.policy_versions]
    lags = [current_step - _step_of(version, training_steps, current_step) for version in versions]
    return torch.tensor(lags, dtype=torch.int64)


def _step_of(policy_version: int, training_steps: Mapping[int, int], current_step: int) -> int:
    """Training step of a version's weights; those that were lost in a restart count as being of the current one."""
    return min(training_steps[policy_version], current_step)


def entropy_measures(pool: BatchTensors, proximal: Scores) -> Measures:
    """Entropy of the proximal policy over the unfiltered pool: whole, early and late, per turn."""
    mask_N = proximal.entropies_N.new_ones(pool.num_tokens).bool()
    thirds = early_late_thirds(proximal.entropies_N, mask_N, pool.layout)
    measures: Measures = {
        "learner/entropy/token_mean": proximal.entropies_N.double().mean().item(),
        "learner/entropy/early_third": thirds.early,
        "learner/entropy/late_third": thirds.late,
    }
    by_turn = entropy_by_turn(proximal.entropies_N, mask_N, pool.layout)
    measures.update({f"learner/entropy/turn_{index:02d}": value for index, value in enumerate(by_turn)})
    return measures


def cascade_measures(tracker: CascadeTracker, measures: Measures, num_episodes: int) -> Measures:
    """EPO's failure mode, observed on the batch's own episodes; empty where a third of the turns has no token."""
    names = ("early_third", "late_third", "token_mean")
    values = [measures.get(f"learner/entropy/{name}") for name in names]
    early, late, mean = (value if isinstance(value, float) else None for value in values)
    success = measures.get("learner/episode/success_mean")
    if early is None or late is None or mean is None or not isinstance(success, int | float):
        return {}
    reading = tracker.observe(
        CascadeMeasurement(
            early_entropy=early, late_entropy=late, step_entropy=mean, success=success, num_episodes=num_episodes
        )
    )
    return {
        "learner/cascade/oscillation": reading.oscillation,
        "learner/cascade/explore_alarm": int(reading.explore_alarm),
        "learner/cascade/propagate_alarm": int(reading.propagate_alarm),
    }


def update_measures(
    kept: BatchTensors, proximal: Scores, terms: StepTerms, result: UpdateResult, options: UpdateOptions
) -> Measures:
    """Movement of the policy, mismatch of sampler and trainer, loss and gradient."""
    token_terms, mask_N = terms.token_terms, terms.correction.mask_N
    anchor_logprobs_N, _ = token_terms.correction_at(result.logprobs_N)
    moved = update_statistics(result.logprobs_N, anchor_logprobs_N, token_terms.advantages_N, mask_N, options.loss.ppo)
    mismatch = mismatch_statistics(proximal.logprobs_N, kept.behavior_logprobs_N, mask_N, options.off_policy)
    return {
        "learner/loss/total": result.loss,
        "learner/gradient/norm": result.grad_norm,
        "learner/optimizer/learning_rate": result.learning_rate,
        "learner/tokens/trained": int(mask_N.sum()),
        "learner/tokens/forward": sum(len(row.ids) for row in kept.rows),
        **{f"learner/policy/{name}": value for name, value in moved.items()},
        **{f"learner/mismatch/{name}": value for name, value in mismatch.items()},
    }


def bucketed_mismatch_measures(kept: BatchTensors, proximal: Scores, terms: StepTerms, lags_N: Tensor) -> Measures:
    """Mismatch of sampler and trainer per lag and per turn index: where it comes from."""
    buckets = {"lag": lags_N, "turn": turn_positions(kept.layout)[kept.layout.turn_index_N]}
    return {
        f"learner/mismatch/{family}_{number:02d}/{name}": value
        for family, bucket_N in buckets.items()
        for number, values in mismatch_by_bucket(
            proximal.logprobs_N, kept.behavior_logprobs_N, terms.correction.mask_N, bucket_N
        ).items()
        for name, value in values.items()
    }


def reference_measures(logprobs_N: Tensor, reference_logprobs_N: Tensor, mask_N: Tensor) -> Measures:
    """Distance of the policy from the reference over the final mask, by the two unbiased estimators."""
    mask_N = mask_N.bool()
    if not mask_N.any():
        return {}
    logprobs, reference = logprobs_N[mask_N].double(), reference_logprobs_N[mask_N].double()
    return {
        "learner/reference/kl_k1": k1(logprobs, reference).mean().item(),
        "learner/reference/kl_k3": k3(logprobs, reference).mean().item(),
    }


def epo_measures(result: UpdateResult, terms: StepTerms, options: EpoOptions, step: EpoStep) -> Measures:
    """Where the trained tokens lie in the corridor, and which of the two terms acts."""
    token_terms, references_N = terms.token_terms, terms.token_terms.entropy_references_N
    occupancy = corridor_occupancy(result.entropies_N, terms.correction.mask_N, step, options, references_N)
    bonus, penalty = gradient_shares(result.entropies_N, token_terms.entropy_weights_N, step, options, references_N)
    reference = step.reference if references_N is None else None
    return {
        "learner/epo/beta": step.beta,
        "learner/epo/scale": step.scale,
        "learner/epo/reference": reference,
        "learner/epo/corridor_low": None if reference is None else options.kappa_low * reference,
        "learner/epo/corridor_high": None if reference is None else options.kappa_high * reference,
        "learner/epo/share_below": occupancy.below,
        "learner/epo/share_inside": occupancy.inside,
        "learner/epo/share_above": occupancy.above,
        "learner/epo/bonus_gradient": bonus,
        "learner/epo/penalty_gradient": penalty,
    }
