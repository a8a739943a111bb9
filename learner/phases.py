"""The phases of the training loop, each a function over the learner's parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from learner.batch import Batch, BatchOptions, BatchTensors, tensors_of, tokens_of_groups
from learner.checkpoint import save_checkpoint
from learner.config import LearnConfig
from learner.critic.estimate import Values
from learner.critic.interface import Critic
from learner.desk import TrainingDesk
from learner.engine_client import Target
from learner.entropy_state import entropy_step, remember_entropy
from learner.filters.selection import GroupFilter, Selection
from learner.filters.streaming import StreamingMass
from learner.gradient_probe import GradientProbe
from learner.ledger.records import BatchOutcome, Evaluation, GroupVerdict
from learner.losses.epo import EpoStep
from learner.measure_board import MeasureBoard
from learner.measures import (
    Measures,
    batch_measures,
    bucketed_mismatch_measures,
    cascade_measures,
    entropy_measures,
    epo_measures,
    group_facts,
    lag_measures,
    reference_measures,
    token_lags,
    update_measures,
)
from learner.model import PolicyModel
from learner.phase_clock import PhaseClock
from learner.probe import probe
from learner.publisher import Published, Publisher
from learner.reference import BaseReference, Reference
from learner.silent import SilentBoard, SilentDesk, SilentPublisher
from learner.state import EndReason, TrainerState
from learner.step_terms import Scores, StepContext, StepTerms, step_terms
from learner.update import UpdateResult, apply_update, score_rows
from learner.update_options import UpdateOptions
from longturn.codec import trajectory_from_bytes
from longturn.status import StatusBoard
from longturn.task_file import TaskEntry

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Parts:
    """The learner's collaborators; who made them closes them."""

    config: LearnConfig
    state: TrainerState
    run_epoch: int
    model: PolicyModel
    optimizer: torch.optim.Optimizer
    critic: Critic
    update_options: UpdateOptions
    batch_options: BatchOptions
    group_filter: GroupFilter
    reference: Reference | BaseReference | None
    """The frozen policy of a reference KL; None if there is none."""
    desk: TrainingDesk | SilentDesk
    publisher: Publisher | SilentPublisher
    board: MeasureBoard | SilentBoard
    status: StatusBoard
    panel: tuple[TaskEntry, ...]
    clock: PhaseClock = field(default_factory=PhaseClock)
    measures: Measures = field(default_factory=dict[str, float | str | None])
    """Of the batch at hand."""
    target: Target | None = None
    """The newest version that was offered to the engines."""
    stop_reason: EndReason | None = None
    """Set by an alarm whose action is to stop."""
    pending_evaluations: list[int] = field(default_factory=list[int])

    @property
    def checkpoints_dir(self) -> Path:
        """Where checkpoints go."""
        return self.config.run_dir / "checkpoints"


def publish_first(parts: Parts) -> None:
    """Publish the weights at hand under a new version; UnreachableError if no engine comes up in the budget."""
    parts.status.set_phase("waiting")
    published = _publish(parts, timeout_s=parts.config.publish.connect_timeout_s)
    if not published.is_announced:
        raise parts.publisher.first_engine_missing(parts.config.publish.connect_timeout_s)
    parts.desk.announce(published.target, published.confirmed)
    if not parts.state.batches_consumed:
        save(parts)
    evaluate(parts)


def _publish(parts: Parts, *, timeout_s: float) -> Published:
    version = parts.desk.allocate_version(parts.state.training_step)
    published = parts.publisher.publish(version, parts.state.training_step, timeout_s=timeout_s)
    parts.target = published.target
    parts.status.set_fact("policy_version", version)
    parts.measures |= {
        "policy_version": version,
        "learner/publish/save_s": published.save_s,
        "learner/publish/load_s": published.load_s,
        "learner/publish/confirmed_engines": len(published.confirmed),
    }
    return published


def record_verdicts(parts: Parts, batch: Batch, selection: Selection) -> None:
    """Write the batch and the filter's verdicts into the ledger, before anything is trained."""
    parts.measures |= batch_measures(batch, selection)
    _watch_repetition(parts, batch)
    if isinstance(parts.group_filter, StreamingMass) and batch.groups:
        facts = group_facts(batch, parts.desk.training_steps(), parts.state.training_step)
        parts.state.shadow.observe(facts, selection, parts.group_filter.rule)
        parts.measures |= parts.state.shadow.measures()
    verdicts = [
        GroupVerdict(group_id=group.taken.group_id, verdict=verdict.value, score=score)
        for group, verdict, score in zip(batch.groups, selection.verdicts, selection.scores, strict=True)
    ]
    parts.desk.record(batch.taken.batch, parts.state.training_step + 1, verdicts)


def _watch_repetition(parts: Parts, batch: Batch) -> None:
    alarms, share = parts.config.alarms, parts.measures.get("learner/reasoning/repeated_token_share")
    if not isinstance(share, float) or share <= alarms.max_repeated_token_share:
        return
    parts.board.alarm("repetition", batch=batch.taken.batch, repeated_token_share=share, action=alarms.on_repetition)
    if alarms.on_repetition == "stop":
        parts.stop_reason = EndReason.REPETITION


def train(parts: Parts, batch: Batch, selection: Selection) -> EndReason | None:
    """Update on the kept groups, score the rest of the pool; why the step was skipped, or None.

    Groups that are trained are scored before the update only where something needs it; else its own forward pass
    scores them.
    """
    parts.status.set_phase("training")
    options, state, check_stop = parts.update_options, parts.state, parts.desk.check_stop
    pool, kept = tensors_of(batch), tensors_of(batch.restricted_to(selection.kept))
    kept_index = tokens_of_groups(pool.layout, selection.kept)
    dropped = [index for index in range(len(batch.groups)) if index not in selection.kept]
    scores_first = options.scores_first or _is_gradient_probe_due(parts)
    scored = pool if scores_first else tensors_of(batch.restricted_to(dropped))
    parts.measures["learner/tokens/scored"] = sum(len(row.ids) for row in scored.rows)
    with parts.clock.phase("score"):
        scores = score_rows(parts.model, scored, temperature=options.temperature, on_row=check_stop)
    training_steps = parts.desk.training_steps()
    parts.measures |= lag_measures(batch, training_steps, state.training_step)
    if not scores.is_finite:
        parts.board.alarm("non_finite", batch=batch.taken.batch, where="scores")
        return EndReason.NON_FINITE
    proximal = scores if scores_first else None
    kept_proximal = proximal and proximal.take(kept_index)
    context = StepContext(
        kept_ratio=selection.kept_ratio,
        epo_step=_entropy_step(parts, pool, proximal),
        reference_logprobs_N=_reference_logprobs(parts, kept),
        lags_N=token_lags(kept, training_steps, state.training_step),
        values=_values(parts, kept),
    )
    terms = step_terms(kept, kept_proximal, options, batch=batch.taken.batch, context=context)
    if proximal is not None and _is_gradient_probe_due(parts):
        _probe_gradients(parts, batch, proximal, context)
    with parts.clock.phase("update"):
        result = apply_update(
            parts.model,
            parts.optimizer,
            kept,
            terms,
            options,
            training_step=state.training_step,
            epo_step=context.epo_step,
            critic=parts.critic,
            on_row=check_stop,
        )
    if proximal is None:
        dropped_index = tokens_of_groups(pool.layout, dropped)
        scores = Scores.joined([(kept_index, result.scores), (dropped_index, scores)])
    if scores.is_finite:
        parts.measures |= entropy_measures(pool, scores)
        parts.measures |= cascade_measures(state.cascade, parts.measures, pool.layout.num_trajectories)
        _measure_update(parts, kept, kept_proximal or result.scores, terms, result, context)
    if not result.is_applied:
        parts.board.alarm("non_finite", batch=batch.taken.batch, loss=result.loss, grad_norm=result.grad_norm)
        return EndReason.NON_FINITE
    state.training_step += 1
    # The history takes the policy as it was before the update, over the unfiltered pool: the filter must not move it.
    remember_entropy(state, options, pool, scores, max_turns=parts.config.play.max_turns)
    state.running_scores.fade(parts.config.snr.score_decay)
    members = [member for index in selection.kept for member in batch.groups[index].members]
    state.num_trained_trajectories += len(members)
    state.num_trained_turns += sum(len(member.trajectory.turns) for member in members)
    return None


def _entropy_step(parts: Parts, pool: BatchTensors, proximal: Scores | None) -> EpoStep | None:
    return entropy_step(
        parts.state,
        parts.update_options,
        pool,
        proximal,
        total_steps=parts.config.batch.num_batches,
        max_turns=parts.config.play.max_turns,
    )


def _reference_logprobs(parts: Parts, kept: BatchTensors) -> Tensor | None:
    if parts.reference is None:
        return None
    with parts.clock.phase("reference"):
        return parts.reference.logprobs(
            kept, temperature=parts.update_options.temperature, on_row=parts.desk.check_stop
        )


def _values(parts: Parts, kept: BatchTensors) -> Values | None:
    if parts.update_options.value is None:
        return None
    with parts.clock.phase("critic"):
        return parts.critic.values(kept, on_row=parts.desk.check_stop)


def _is_gradient_probe_due(parts: Parts) -> bool:
    every = parts.config.diagnostics.gradients_every
    return every > 0 and parts.state.training_step % every == 0


def _probe_gradients(parts: Parts, batch: Batch, proximal: Scores, context: StepContext) -> None:
    diagnostics, reference = parts.config.diagnostics, parts.reference
    probe = GradientProbe(
        model=parts.model,
        options=parts.update_options,
        epo_step=context.epo_step,
        num_buckets=diagnostics.gradient_buckets,
        reference_logprobs=reference and partial(reference.logprobs, temperature=parts.update_options.temperature),
        values=partial(parts.critic.values, on_row=parts.desk.check_stop),
        on_row=parts.desk.check_stop,
    )
    with parts.clock.phase("probe"):
        parts.measures |= probe.measure(batch, proximal)


def _measure_update(
    parts: Parts,
    kept: BatchTensors,
    kept_proximal: Scores,
    terms: StepTerms,
    result: UpdateResult,
    context: StepContext,
) -> None:
    options, limits, step = parts.update_options, parts.config.alarms, context.epo_step
    parts.measures |= update_measures(kept, kept_proximal, terms, result, options)
    parts.measures |= parts.critic.measures
    if context.lags_N is not None:
        parts.measures |= bucketed_mismatch_measures(kept, kept_proximal, terms, context.lags_N)
    if options.loss.epo is not None and step is not None:
        parts.measures |= epo_measures(result, terms, options.loss.epo, step)
    reference_logprobs_N = terms.token_terms.reference_logprobs_N
    if reference_logprobs_N is not None:
        parts.measures |= reference_measures(kept_proximal.logprobs_N, reference_logprobs_N, terms.correction.mask_N)
    for rule in ("explore", "propagate"):
        if parts.measures.get(f"learner/cascade/{rule}_alarm"):
            parts.board.alarm(f"cascade_{rule}")
    distance = parts.measures.get("learner/mismatch/mean_abs_log_weight", 0.0)
    sample_size = parts.measures.get("learner/mismatch/effective_sample_size", 1.0)
    if isinstance(distance, float) and distance > limits.max_mean_abs_log_weight:
        parts.board.alarm("mismatch", mean_abs_log_weight=distance)
    if isinstance(sample_size, float) and sample_size < limits.min_effective_sample_size:
        parts.board.alarm("effective_sample_size", effective_sample_size=sample_size)


def finish_trained(parts: Parts, batch: Batch) -> None:
    """Publish the new weights, consume the batch, announce; then probe the reasoning while actors play on."""
    with parts.clock.phase("wait_engine"):
        published = _publish(parts, timeout_s=parts.config.publish.confirm_timeout_s)
    if not published.is_announced:
        parts.board.alarm("no_engine", policy_version=published.target.policy_version, **parts.publisher.problem)
    parts.desk.finish(batch.taken.batch, published.target, published.confirmed, is_announced=published.is_announced)
    every = parts.config.diagnostics.every
    if every and parts.state.training_step % every == 0:
        with parts.clock.phase("probe"):
            parts.measures |= probe(
                parts.model,
                batch,
                parts.state.regimes,
                num_samples=parts.config.diagnostics.num_samples,
                temperature=parts.update_options.temperature,
                seed=f"{parts.config.seed}/probe/{parts.state.training_step}",
            )


def evaluate(parts: Parts) -> None:
    """Offer the panel when it is due, and write what came back of earlier ones."""
    every = parts.config.evaluation.every
    is_due = every > 0 and parts.state.training_step % every == 0
    if is_due and parts.target is not None and parts.desk.open_evaluation(parts.target, parts.panel):
        parts.pending_evaluations.append(parts.target.policy_version)
    collect_evaluations(parts)


def collect_evaluations(parts: Parts) -> None:
    """Write a row for every evaluation that is complete."""
    for version in list(parts.pending_evaluations):
        evaluation = parts.desk.evaluation(version)
        if evaluation is None:
            continue
        parts.pending_evaluations.remove(version)
        newest, measures = _evaluation_measures(evaluation, parts.desk.training_steps())
        parts.board.write("policy_version", newest, measures)
        parts.desk.mark_reported(version)
        logger.info("evaluated", extra={"policy_version": newest, **measures})


def _evaluation_measures(evaluation: Evaluation, training_steps: Mapping[int, int]) -> tuple[int, Measures]:
    """The newest version that played, which is where the row belongs, and the row.

    Weights go on while a panel is played, so later versions than the one it was opened for may have played it.
    """
    trajectories = [trajectory_from_bytes(data) for data in evaluation.trajectories]
    played = {version for trajectory in trajectories for version in trajectory.policy_versions}
    played = played or {evaluation.policy_version}
    newest = max(played)
    measures: Measures = {
        "training_step": training_steps[newest],
        "learner/eval/min_policy_version": min(played),
        "learner/eval/max_policy_version": newest,
        "learner/eval/episodes": len(trajectories),
        "learner/eval/closed_slots": evaluation.num_closed_slots,
    }
    if trajectories:
        measures["learner/eval/success_mean"] = fmean(trajectory.success for trajectory in trajectories)
        measures["learner/eval/turns_mean"] = fmean(len(trajectory.turns) for trajectory in trajectories)
    return newest, measures


def wait_for_evaluations(parts: Parts) -> None:
    """Wait for evaluations that are still played, at most `evaluation.wait_s`; then report what there is of them."""
    deadline_s = time.monotonic() + parts.config.evaluation.wait_s
    with parts.status.waiting("actors", "evaluations", budget_s=parts.config.evaluation.wait_s):
        while parts.pending_evaluations and time.monotonic() < deadline_s:
            parts.desk.check_stop()
            collect_evaluations(parts)
            parts.desk.wait_for_news()
    if parts.pending_evaluations:
        parts.board.alarm("evaluation_missing", policy_versions=parts.pending_evaluations)
        for version in parts.pending_evaluations:
            parts.desk.close_evaluation(version, "NOT_PLAYED_IN_TIME")
        collect_evaluations(parts)


def save(parts: Parts) -> None:
    """Write a checkpoint of the state at hand; the leader's is that of all ranks."""
    if not parts.model.ranks.is_leader:
        return
    with parts.clock.phase("checkpoint"):
        save_checkpoint(
            parts.checkpoints_dir,
            state=parts.state,
            model=parts.model,
            optimizer=parts.optimizer,
            critic=parts.critic,
            num_batches=parts.config.batch.num_batches,
            keep=parts.config.checkpoint.keep,
        )


def write_measures(parts: Parts, batch: Batch, skip_reason: EndReason | None) -> None:
    """Write the row of a finished batch and say in one line how it went."""
    state, spent = parts.state, parts.clock.take()
    outcome = skip_reason.value if skip_reason else BatchOutcome.TRAINED.value
    for name, seconds in spent.items():
        state.wall_s[name] = state.wall_s.get(name, 0.0) + seconds
    measures = parts.measures | {f"learner/phase/{name}_s": seconds for name, seconds in spent.items()}
    measures |= state.length_bias.shares()
    measures |= {
        "training_step": state.training_step,
        "run_epoch": parts.run_epoch,
        "outcome": outcome,
    }
    update_s = spent.get("score", 0.0) + spent.get("update", 0.0)
    tokens = measures.get("learner/tokens/forward")
    if isinstance(tokens, int) and update_s > 0:
        measures["learner/tokens/rate_per_s"] = tokens / update_s
    parts.board.write("batch", batch.taken.batch, measures)
    parts.measures = {}
    parts.status.set_fact("batches", f"{state.batches_consumed}/{parts.config.batch.num_batches}")
    parts.status.set_fact("training_step", state.training_step)
    parts.status.set_phase("waiting")
    shown = {
        "success": measures.get("learner/episode/success_mean"),
        "kept": f"{measures['learner/group/kept']}/{measures['learner/group/generated']}",
        "entropy": measures.get("learner/entropy/token_mean"),
        "lag": measures.get("learner/lag/head"),
    }
    logger.info(
        "batch finished",
        extra={"batch": batch.taken.batch, "outcome": outcome, "training_step": state.training_step}
        | shown
        | {name: round(seconds, 2) for name, seconds in spent.items()},
    )
