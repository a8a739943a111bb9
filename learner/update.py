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
from learner.critic.interface import NO_CRITIC, Critic
from learner.filters.scores import SCORES
from learner.filters.selection import GroupFilter, Selection
from learner.gradients import add_gradients
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
    "group_scores",
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
    """The filter's verdict on every group."""
    return group_filter.select(group_scores(batch, score))


def group_scores(batch: Batch, score: str) -> list[float]:
    """Score of every group, from shaped returns; a group of one, which is never filtered, has 0."""
    return [SCORES[score](group.returns) if len(group.members) > 1 else 0.0 for group in batch.groups]


def score_rows(
    model: PolicyModel, tensors: BatchTensors, *, temperature: float, on_row: Callable[[], None] = lambda: None
) -> Scores:
    """Proximal logprobs and entropies of all trained tokens, pass by pass, without gradients."""
    logprobs_N = torch.zeros(tensors.num_tokens)
    entropies_N = torch.zeros(tensors.num_tokens)
    for rows in model.passes(tensors):
        logprobs, entropies = model.score(rows, temperature=temperature)
        logprobs_N[rows.tokens], entropies_N[rows.tokens] = logprobs.cpu(), entropies.cpu()
        on_row()
    model.ranks.add([logprobs_N, entropies_N])
    return Scores(logprobs_N=logprobs_N, entropies_N=entropies_N)


def accumulate_gradients(
    model: PolicyModel,
    kept: BatchTensors,
    terms: TokenTerms,
    options: LossOptions,
    *,
    temperature: float,
    epo_step: EpoStep | None,
    critic: Critic = NO_CRITIC,
    on_row: Callable[[], None] = lambda: None,
) -> tuple[float, Scores]:
    """Loss and gradient pass by pass: the summed loss, and what the policy says of every token on the way."""
    logprobs_N, entropies_N = torch.zeros(kept.num_tokens), torch.zeros(kept.num_tokens)
    loss = torch.zeros((), dtype=torch.float64)
    for rows in model.passes(kept):
        row_terms = terms.take(rows.tokens).to(model.device)
        output, hidden_nD = model.loss(
            rows,
            lambda logprobs_n, entropies_n, part, row_terms=row_terms: step_token_losses(
                logprobs_n, entropies_n, row_terms.take(part), options, epo_step
            ),
            temperature=temperature,
        )
        total = output.loss + critic.loss_beside(hidden_nD, rows.tokens)
        total.backward()
        loss += total.item()
        logprobs_N[rows.tokens], entropies_N[rows.tokens] = output.logprobs_N.cpu(), output.entropies_N.cpu()
        on_row()
    add_gradients(model.ranks, [parameter for _, parameter in model.trainable])
    model.ranks.add([loss, logprobs_N, entropies_N])
    return loss.item(), Scores(logprobs_N=logprobs_N, entropies_N=entropies_N)


def apply_update(
    model: PolicyModel,
    optimizer: torch.optim.Optimizer,
    kept: BatchTensors,
    terms: StepTerms,
    options: UpdateOptions,
    *,
    training_step: int,
    epo_step: EpoStep | None,
    critic: Critic = NO_CRITIC,
    on_row: Callable[[], None] = lambda: None,
) -> UpdateResult:
    """Gradients, clip, guard, step, of the policy and of its critic: both move or neither does.

    While the critic warms up the policy only says what it thinks of the tokens.
    """
    optimizer.zero_grad(set_to_none=True)
    critic.begin(kept, terms.value_terms, training_step=training_step, on_row=on_row)
    if critic.holds_policy(training_step):
        loss, learning_rate, grad_norm = 0.0, 0.0, 0.0
        scores = score_rows(model, kept, temperature=options.temperature, on_row=on_row)
    else:
        loss, scores = accumulate_gradients(
            model,
            kept,
            terms.token_terms,
            options.loss,
            temperature=options.temperature,
            epo_step=epo_step,
            critic=critic,
            on_row=on_row,
        )
        learning_rate = options.schedule.rate(training_step)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.module.parameters(), options.max_grad_norm).item()
    is_finite = critic.is_finite() and math.isfinite(loss) and math.isfinite(grad_norm)
    if is_finite:
        for parameters in optimizer.param_groups:
            parameters["lr"] = learning_rate
        # Without any gradient, as while the critic warms up, AdamW leaves parameters and moments alone.
        optimizer.step()
        critic.apply(training_step)
    critic.end()
    optimizer.zero_grad(set_to_none=True)
    return UpdateResult(
        is_applied=is_finite,
        loss=loss,
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        logprobs_N=scores.logprobs_N,
        entropies_N=scores.entropies_N,
    )
