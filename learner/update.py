"""One training step's arithmetic, phase by phase (docs/training.md). Knows no ledger, no engine, no files.

N trained tokens of a batch or of its kept groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.batch import Batch, BatchTensors
from learner.filters.scores import SCORES
from learner.filters.selection import GroupFilter, Selection
from learner.losses.epo import EpoStep
from learner.losses.step_loss import LossOptions, TokenTerms, step_token_losses
from learner.model import PolicyModel
from learner.step_terms import Scores, StepContext, StepTerms, step_terms
from learner.update_options import UpdateOptions

__all__ = [
    "Scores",
    "StepContext",
    "StepTerms",
    "UpdateOptions",
    "UpdateResult",
    "accumulate_gradients",
    "apply_update",
    "score_rows",
    "select_groups",
    "step_terms",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateResult:
    """What an update did. `is_applied` is False if loss or gradient was not finite: the weights are untouched."""

    is_applied: bool
    loss: float
    grad_norm: float
    learning_rate: float
    logprobs_N: Tensor
    entropies_N: Tensor

    @property
    def scores(self) -> Scores:
        """What the policy said of every kept token before the step."""
        return Scores(logprobs_N=self.logprobs_N, entropies_N=self.entropies_N)


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


def accumulate_gradients(
    model: PolicyModel,
    kept: BatchTensors,
    terms: TokenTerms,
    options: LossOptions,
    *,
    temperature: float,
    epo_step: EpoStep | None,
    on_row: Callable[[], None] = lambda: None,
) -> tuple[float, Scores]:
    """Loss and gradient row by row: the summed loss, and what the policy says of every token on the way."""
    logprobs_N, entropies_N = torch.empty(kept.num_tokens), torch.empty(kept.num_tokens)
    loss = 0.0
    for row, tokens in zip(kept.rows, kept.token_slices, strict=True):
        if row.num_trained:
            row_terms = terms.take(tokens).to(model.device)
            output = model.loss(
                row,
                lambda logprobs_n, entropies_n, part, row_terms=row_terms: step_token_losses(
                    logprobs_n, entropies_n, row_terms.take(part), options, epo_step
                ),
                temperature=temperature,
            )
            output.loss.backward()
            loss += output.loss.item()
            logprobs_N[tokens], entropies_N[tokens] = output.logprobs_N.cpu(), output.entropies_N.cpu()
        on_row()
    return loss, Scores(logprobs_N=logprobs_N, entropies_N=entropies_N)


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
    """Gradients, clip, guard, step."""
    optimizer.zero_grad(set_to_none=True)
    loss, scores = accumulate_gradients(
        model,
        kept,
        terms.token_terms,
        options.loss,
        temperature=options.temperature,
        epo_step=epo_step,
        on_row=on_row,
    )
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
        logprobs_N=scores.logprobs_N,
        entropies_N=scores.entropies_N,
    )
