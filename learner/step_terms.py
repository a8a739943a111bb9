"""What is fixed before the first row goes backward: final mask, advantages and weights of every token.

N trained tokens of the kept groups, K turns, J trajectories.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learner.advantages import GROUP_ADVANTAGES
from learner.advantages.kl_in_reward import returns_with_kl, token_costs
from learner.advantages.soft_reweight import group_weights
from learner.advantages.token_shaping import ShapingInputs
from learner.advantages.turn_inputs import TurnInputs
from learner.advantages.turn_level import token_advantages, turn_terms
from learner.batch import BatchTensors
from learner.critic.estimate import Values, ValueTerms, value_terms
from learner.losses.aggregation import token_weights
from learner.losses.entropy_weights import EntropyInputs, entropy_weights, token_references
from learner.losses.epo import EpoStep
from learner.losses.gspo import sequence_anchor
from learner.losses.off_policy import Correction, CorrectionInputs, correct, correct_in_update
from learner.losses.token_terms import TokenTerms
from learner.update_options import UpdateOptions

_NO_EPO = EpoStep(beta=1.0, reference=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Logprobs and entropies at the weights before the update: the proximal policy."""

    logprobs_N: Tensor
    entropies_N: Tensor

    @property
    def is_finite(self) -> bool:
        """Whether every number is."""
        return bool(self.logprobs_N.isfinite().all() and self.entropies_N.isfinite().all())

    def take(self, index_N: Tensor) -> Scores:
        """Those of some tokens."""
        return Scores(logprobs_N=self.logprobs_N[index_N], entropies_N=self.entropies_N[index_N])

    @classmethod
    def joined(cls, parts: Sequence[tuple[Tensor, Scores]]) -> Scores:
        """Scores of all tokens from parts and their places, which together are all places."""
        num_tokens = sum(len(index) for index, _ in parts)
        logprobs_N, entropies_N = torch.empty(num_tokens), torch.empty(num_tokens)
        for index, scores in parts:
            logprobs_N[index], entropies_N[index] = scores.logprobs_N, scores.entropies_N
        return cls(logprobs_N=logprobs_N, entropies_N=entropies_N)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepContext:
    """What a step knows beside its tokens."""

    kept_ratio: float = 1.0
    """Kept groups over groups."""
    epo_step: EpoStep | None = None
    reference_logprobs_N: Tensor | None = None
    """Logprobs of the reference policy; needed if the options read them."""
    lags_N: Tensor | None = None
    """Training steps since each token was sampled; needed by log_linear."""
    values: Values | None = None
    """What the critic says; needed by the estimators that have one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTerms:
    """Constants of every token, and what the off-policy correction made of the mask."""

    token_terms: TokenTerms
    correction: Correction
    value_terms: ValueTerms | None = None
    """Targets of the critic, where there is one."""


def step_terms(
    kept: BatchTensors,
    proximal: Scores | None,
    options: UpdateOptions,
    *,
    batch: int,
    context: StepContext = StepContext(),
) -> StepTerms:
    """Final mask, advantages and per-token weights of the kept groups, from whole-step counts.

    `proximal` may be absent unless `options.scores_first`. ValueError if the context lacks a part that the options
    need.
    """
    if options.reads_reference and context.reference_logprobs_N is None:
        raise ValueError("the reference KL needs reference_logprobs_N")
    correction = _correction(kept, proximal, options, context)
    valued = _value_terms(kept, proximal, options, correction, context)
    advantages_N = advantages(kept, proximal, options, batch=batch, context=context, valued=valued)
    anchor_kl_N = None
    if proximal is not None:
        shaping = ShapingInputs(
            advantages_N=advantages_N,
            logprobs_N=proximal.logprobs_N,
            entropies_N=proximal.entropies_N,
            anchor_logprobs_N=correction.anchor_logprobs_N,
            mask_N=correction.mask_N,
            seed=f"{options.seed}/{batch}",
        )
        anchor_kl_N = options.anchor_kl(shaping) if options.anchor_kl else None
        advantages_N = options.shaper(shaping) if options.shaper else advantages_N
    entropy_weights_N, entropy_references_N = _entropy_terms(kept, proximal, options, correction, context)
    terms = TokenTerms(
        advantages_N=advantages_N * options.loss_scaling(context.kept_ratio),
        anchor_logprobs_N=correction.anchor_logprobs_N,
        correction_weights_N=correction.weights_N,
        policy_weights_N=token_weights(
            options.aggregation, kept.layout, correction.mask_N, constant=options.aggregation_constant
        ),
        entropy_weights_N=entropy_weights_N,
        reference_logprobs_N=context.reference_logprobs_N,
        entropy_references_N=entropy_references_N,
        anchor_kl_N=anchor_kl_N,
        interpolation=correction.interpolation,
    )
    return StepTerms(token_terms=terms, correction=correction, value_terms=valued)


def _value_terms(
    kept: BatchTensors, proximal: Scores | None, options: UpdateOptions, correction: Correction, context: StepContext
) -> ValueTerms | None:
    if options.value is None:
        return None
    if context.values is None:
        raise ValueError("the estimator needs the values of a critic")
    costs_N = None
    if options.reward_kl is not None:
        costs_N = token_costs(*_both_logprobs(proximal, context), options.reward_kl)
    return value_terms(
        kept, context.values, options.value, reward=options.reward, mask_N=correction.mask_N, token_costs_N=costs_N
    )


def _both_logprobs(proximal: Scores | None, context: StepContext) -> tuple[Tensor, Tensor]:
    if proximal is None or context.reference_logprobs_N is None:
        raise ValueError("a KL in the reward needs logprobs of both policies")
    return proximal.logprobs_N, context.reference_logprobs_N


def _correction(
    kept: BatchTensors, proximal: Scores | None, options: UpdateOptions, context: StepContext
) -> Correction:
    behavior_logprobs_N = kept.behavior_logprobs_N
    inputs = CorrectionInputs(
        proximal_logprobs_N=behavior_logprobs_N if proximal is None else proximal.logprobs_N,
        behavior_logprobs_N=behavior_logprobs_N,
        mask_N=torch.ones(kept.num_tokens, dtype=torch.bool),
        layout=kept.layout,
        lags_N=context.lags_N,
    )
    if proximal is None:
        return correct_in_update(options.off_policy, inputs)
    correction = correct(options.off_policy, inputs)
    if not options.has_sequence_ratio:
        return correction
    anchor_N = sequence_anchor(proximal.logprobs_N, correction.anchor_logprobs_N, correction.mask_N, kept.layout)
    return replace(correction, anchor_logprobs_N=anchor_N)


def _entropy_terms(
    kept: BatchTensors, proximal: Scores | None, options: UpdateOptions, correction: Correction, context: StepContext
) -> tuple[Tensor, Tensor | None]:
    zeros_N = torch.zeros(kept.num_tokens)
    if options.loss.epo is None:
        return zeros_N, None
    step = context.epo_step or _NO_EPO
    inputs = EntropyInputs(
        entropies_N=zeros_N if proximal is None else proximal.entropies_N,
        mask_N=correction.mask_N,
        layout=kept.layout,
    )
    return entropy_weights(inputs, options.loss.epo, step, options.turn_scale), token_references(kept.layout, step)


def advantages(
    kept: BatchTensors,
    proximal: Scores | None,
    options: UpdateOptions,
    *,
    batch: int,
    context: StepContext,
    valued: ValueTerms | None = None,
) -> Tensor:
    """Advantage of every token before any shaping: the estimator's, plus the weighted turn term.

    `valued` stands for the estimator where there is a critic; it has a KL in the reward already.
    """
    layout, returns_J = kept.layout, kept.returns_J
    if options.reward_kl is not None and valued is None:
        returns_J = returns_with_kl(returns_J, *_both_logprobs(proximal, context), layout, options.reward_kl)
    # The control run: the same numbers, each on a trajectory, a turn or a token that did not earn it.
    order = None if options.permute_seed is None else random.Random(f"{options.permute_seed}/permute/{batch}")
    if valued is not None:
        estimated_N = _permuted(valued.advantages_N, order)
    elif options.turn_estimator is None:
        group_J = GROUP_ADVANTAGES[options.estimator](returns_J, layout.group_index_J)
        estimated_N = _permuted(group_J, order)[layout.trajectory_index_N]
    else:
        inputs = TurnInputs(trajectories=kept.trajectories, returns_J=returns_J, layout=layout, reward=options.reward)
        estimated_N = _permuted(options.turn_estimator(inputs), order)[layout.turn_index_N]
    terms_K = _permuted(turn_terms(kept.gains_K, layout.group_index_K, kept.has_progress_K), order)
    advantages_N = token_advantages(layout, estimated_N, terms_K, turn_weight=options.turn_weight)
    if options.soft_reweight:
        advantages_N = advantages_N * group_weights(returns_J, layout.group_index_J)[layout.trajectory_index_N]
    return advantages_N


def _permuted(values: Tensor, order: random.Random | None) -> Tensor:
    if order is None:
        return values
    indices = list(range(values.shape[0]))
    order.shuffle(indices)
    return values[torch.tensor(indices, dtype=torch.int64)]
