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


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    ppo: PpoOptions
    epo: EpoOptions | None = None
    """Entropy bonus and corridor; absent: no entropy term at all."""
    kl: KlOptions | None = None
    """Reference KL in the loss; absent: none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTerms:
    """Constants of each token, all flat and of one length."""

    advantages_N: Tensor
    anchor_logprobs_N: Tensor
    correction_weights_N: Tensor
    policy_weights_N: Tensor
    entropy_weights_N: Tensor
    reference_logprobs_N: Tensor | None = None

    def __post_init__(self) -> None:
        lengths = {tensor.shape for tensor in self._tensors()}
        if len(lengths) != 1:
            raise ValueError(f"token terms of different shapes: {sorted(map(tuple, lengths))}")

    def take(self, index_N: Tensor | slice) -> "TokenTerms":
        """The terms of some tokens, with their weights unchanged."""
        reference = self.reference_logprobs_N
        return TokenTerms(
            advantages_N=self.advantages_N[index_N],
            anchor_logprobs_N=self.anchor_logprobs_N[index_N],
            correction_weights_N=self.correction_weights_N[index_N],
            policy_weights_N=self.policy_weights_N[index_N],
            entropy_weights_N=self.entropy_weights_N[index_N],
            reference_logprobs_N=None if reference is None else reference[index_N],
        )

    def _tensors(self) -> list[Tensor]:
        tensors = [
            self.advantages_N,
            self.anchor_logprobs_N,
            self.correction_weights_N,
            self.policy_weights_N,
            self.entropy_weights_N,
        ]
        return tensors if self.reference_logprobs_N is None else [*tensors, self.reference_logprobs_N]


def step_token_losses(
    logprobs_N: Tensor, entropies_N: Tensor, terms: TokenTerms, options: LossOptions, step: EpoStep | None = None
) -> Tensor:
    """Weighted loss per token; their sum over the whole step is the loss. Fits `learner.head.onepass`.

    `step` is needed with EPO, `terms.reference_logprobs_N` with the reference KL; ValueError if missing.
    """
    policy_N = clipped_surrogate(logprobs_N, terms.anchor_logprobs_N, terms.advantages_N, options.ppo)
    if options.kl is not None:
        if terms.reference_logprobs_N is None:
            raise ValueError("the reference KL needs reference_logprobs_N")
        estimate_N = KL_LOSSES[options.kl.kind](logprobs_N, terms.reference_logprobs_N)
        policy_N = policy_N + options.kl.coefficient * estimate_N
    losses_N = terms.policy_weights_N * terms.correction_weights_N * policy_N
    if options.epo is None:
        return losses_N
    if step is None:
        raise ValueError("EPO needs the constants of the step")
    return losses_N + terms.entropy_weights_N * entropy_losses(entropies_N, step, options.epo)
