"""One training step's arithmetic, phase by phase (METHOD.md 3.2). Knows no ledger, no engine, no files.

N trained tokens of a batch or of its kept groups, K turns, J trajectories.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.advantages import GROUP_ADVANTAGES
from learner.advantages.turn_level import token_advantages, turn_terms
from learner.batch import Batch, BatchTensors
from learner.filters.scores import SCORES
from learner.filters.selection import GroupFilter, Selection
from learner.losses.aggregation import token_weights
from learner.losses.epo import EpoStep
from learner.losses.off_policy import Correction, CorrectionInputs, OffPolicyOptions, correct
from learner.losses.step_loss import LossOptions, TokenTerms, step_token_losses
from learner.model import PolicyModel
from learner.schedule import RateSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """Everything that shapes an update."""

    loss: LossOptions
    off_policy: OffPolicyOptions
    aggregation: str
    estimator: str
    turn_weight: float
    temperature: float
    max_grad_norm: float
    schedule: RateSchedule
    permute_seed: int | None = None
    """Set in control runs: advantages are permuted with this seed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Logprobs and entropies at the weights before the update: the proximal policy."""

    logprobs_N: Tensor
    entropies_N: Tensor

    def take(self, index_N: Tensor) -> Scores:
        """Those of some tokens."""
        return Scores(logprobs_N=self.logprobs_N[index_N], entropies_N=self.entropies_N[index_N])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTerms:
    """What is fixed before the first row goes backward."""

    token_terms: TokenTerms
    correction: Correction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateResult:
    """What an update did. `is_applied` is False if loss or gradient was not finite: the weights are untouched."""

    is_applied: bool
    loss: float
    grad_norm: float
    learning_rate: float
    logprobs_N: Tensor
    entropies_N: Tensor


def select_groups(batch: Batch, group_filter: GroupFilter, score: str) -> Selection:
    """The filter's verdict on every group, from shaped returns."""
    return group_filter.select([SCORES[score](group.returns) for group in batch.groups])


def score_rows(
    model: PolicyModel, tensors: BatchTensors, *, temperature: float, on_row: Callable[[], None] = lambda: None
) -> Scores:
    """Proximal logprobs and entropies of all trained tokens, one row at a time, without gradients."""
    logprobs_N = torch.empty(tensors.num_tokens)
    entropies_N = torch.empty(tensors.num_tokens)
    for row, tokens in zip(tensors.rows, tensors.token_slices, strict=True):
        if row.num_trained:
            logprobs, entropies = model.score(row, temperature=temperature)
            logprobs_N[tokens], entropies_N[tokens] = logprobs.cpu(), entropies.cpu()
        on_row()
    return Scores(logprobs_N=logprobs_N, entropies_N=entropies_N)


def step_terms(kept: BatchTensors, proximal: Scores, options: UpdateOptions, *, batch: int) -> StepTerms:
    """Final mask, advantages and per-token weights of the kept groups, from whole-step counts."""
    correction = correct(
        options.off_policy,
        CorrectionInputs(
            proximal_logprobs_N=proximal.logprobs_N,
            behavior_logprobs_N=kept.behavior_logprobs_N,
            mask_N=torch.ones(kept.num_tokens, dtype=torch.bool),
            layout=kept.layout,
        ),
    )
    entropy_weights_N = torch.zeros(kept.num_tokens)
    if options.loss.epo is not None:
        entropy_weights_N = token_weights(options.loss.epo.average, kept.layout, correction.mask_N)
    terms = TokenTerms(
        advantages_N=advantages(kept, options, batch=batch),
        anchor_logprobs_N=correction.anchor_logprobs_N,
        correction_weights_N=correction.weights_N,
        policy_weights_N=token_weights(options.aggregation, kept.layout, correction.mask_N),
        entropy_weights_N=entropy_weights_N,
    )
    return StepTerms(token_terms=terms, correction=correction)


def advantages(kept: BatchTensors, options: UpdateOptions, *, batch: int) -> Tensor:
    """Advantage of every token: A_group plus the weighted turn term."""
    layout = kept.layout
    group_J = GROUP_ADVANTAGES[options.estimator](kept.returns_J, layout.group_index_J)
    turns_K = turn_terms(kept.gains_K, layout.group_index_K, kept.has_progress_K)
    if options.permute_seed is not None:
        # The control run: the same numbers, each on a trajectory and a turn that did not earn it.
        order = random.Random(f"{options.permute_seed}/permute/{batch}")
        group_J = group_J[_permutation(group_J.shape[0], order)]
        turns_K = turns_K[_permutation(turns_K.shape[0], order)]
    return token_advantages(layout, group_J, turns_K, turn_weight=options.turn_weight)


def _permutation(length: int, order: random.Random) -> Tensor:
    indices = list(range(length))
    order.shuffle(indices)
    return torch.tensor(indices, dtype=torch.int64)


def apply_update(
    model: PolicyModel,
    optimizer: torch.optim.Optimizer,
    kept: BatchTensors,
    terms: StepTerms,
    options: UpdateOptions,
    *,
    training_step: int,
    epo_step: EpoStep | None,
    on_row: Callable[[], None] = lambda: None,
) -> UpdateResult:
    """Loss and gradient row by row, clip, guard, step."""
    optimizer.zero_grad(set_to_none=True)
    logprobs_N, entropies_N = torch.empty(kept.num_tokens), torch.empty(kept.num_tokens)
    loss = 0.0
    for row, tokens in zip(kept.rows, kept.token_slices, strict=True):
        if row.num_trained:
            row_terms = _on_device(terms.token_terms.take(tokens), model.device)
            output = model.loss(
                row,
                lambda logprobs_n, entropies_n, part, row_terms=row_terms: step_token_losses(
                    logprobs_n, entropies_n, row_terms.take(part), options.loss, epo_step
                ),
                temperature=options.temperature,
            )
            output.loss.backward()
            loss += output.loss.item()
            logprobs_N[tokens], entropies_N[tokens] = output.logprobs_N.cpu(), output.entropies_N.cpu()
        on_row()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.module.parameters(), options.max_grad_norm).item()
    is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
    learning_rate = options.schedule.rate(training_step)
    if is_finite:
        for parameters in optimizer.param_groups:
            parameters["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return UpdateResult(
        is_applied=is_finite,
        loss=loss,
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        logprobs_N=logprobs_N,
        entropies_N=entropies_N,
    )


def _on_device(terms: TokenTerms, device: torch.device) -> TokenTerms:
    if device.type == "cpu":
        return terms
    reference = terms.reference_logprobs_N
    return TokenTerms(
        advantages_N=terms.advantages_N.to(device),
        anchor_logprobs_N=terms.anchor_logprobs_N.to(device),
        correction_weights_N=terms.correction_weights_N.to(device),
        policy_weights_N=terms.policy_weights_N.to(device),
        entropy_weights_N=terms.entropy_weights_N.to(device),
        reference_logprobs_N=None if reference is None else reference.to(device),
    )
