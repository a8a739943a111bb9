"""The whole loss of a training step as a weighted sum over tokens: policy + entropy corridor + reference KL.

    sum_N  w_policy * c * (PPO + kl_coefficient * KL)  +  w_entropy * (EPO)

w are the aggregation weights of the whole step and c the off-policy weights; the entropy term is not multiplied by c.
Everything but logprobs and entropies is fixed before the first micro-batch. N tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from learner.losses.epo import EpoOptions, EpoStep, entropy_losses
from learner.losses.kl import KL_LOSSES, KlOptions
from learner.losses.ppo import PpoOptions, clipped_surrogate
from learner.losses.ratio import log_ratio
from learner.losses.token_terms import TokenTerms

__all__ = ["LossOptions", "TokenTerms", "step_token_losses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """Which terms the loss of a training step has; each checks its own constants. Sources: the terms' own files."""

    ppo: PpoOptions
    """Clipped policy surrogate; always there."""
    epo: EpoOptions | None = None
    """Entropy bonus and corridor; absent: no entropy term at all."""
    kl: KlOptions | None = None
    """Reference KL in the loss; absent: none."""


def step_token_losses(
    logprobs_N: Tensor, entropies_N: Tensor, terms: TokenTerms, options: LossOptions, step: EpoStep | None = None
) -> Tensor:
    """Weighted loss per token; their sum over the whole step is the loss. Fits `learner.head.onepass`.

    `step` is needed with EPO, `terms.reference_logprobs_N` with the reference KL; ValueError if missing.
    """
    anchor_logprobs_N, correction_weights_N = terms.correction_at(logprobs_N)
    policy_N = clipped_surrogate(logprobs_N, anchor_logprobs_N, terms.advantages_N, options.ppo)
    if terms.anchor_kl_N is not None:
        policy_N = policy_N + terms.anchor_kl_N * log_ratio(logprobs_N, anchor_logprobs_N).abs()
    if options.kl is not None:
        if terms.reference_logprobs_N is None:
            raise ValueError("the reference KL needs reference_logprobs_N")
        estimate_N = KL_LOSSES[options.kl.kind](logprobs_N, terms.reference_logprobs_N)
        policy_N = policy_N + options.kl.coefficient * estimate_N
    losses_N = terms.policy_weights_N * correction_weights_N * policy_N
    if options.epo is None:
        return losses_N
    if step is None:
        raise ValueError("EPO needs the constants of the step")
    return losses_N + terms.entropy_weights_N * entropy_losses(
        entropies_N, step, options.epo, terms.entropy_references_N
    )
