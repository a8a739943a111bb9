"""KL-Cov (Cui et al. 2025, arXiv 2505.22617): tokens of the highest covariance pay for leaving the anchor. N tokens.

    loss = -A r + c |log r|   at the chosen tokens,    -A r   at the others, without any clip

At a ratio of exactly 1 the penalty has no gradient: with one optimizer step per batch it acts only on a ratio to the
policy that sampled (`off_policy.mode = behaviour_ratio`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.advantages.covariance import token_covariances
from learner.advantages.token_shaping import ShapingInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCov:
    """Chooses the tokens that pay and says what (arXiv 2505.22617).

    Called with flat inputs of N tokens it gives N weights of loss per nat, detached, zero outside the mask. ValueError
    for a share outside (0, 1] or a negative coefficient.
    """

    share: float = 2e-4
    """Share of the masked tokens that is chosen, rounded down but at least one."""
    coefficient: float = 1.0
    """c."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        if self.coefficient < 0:
            raise ValueError(f"coefficient must be >= 0, got {self.coefficient}")

    def __call__(self, inputs: ShapingInputs) -> Tensor:
        """Weight of |log r| at every token: c at the chosen ones, else 0."""
        weights_N = torch.zeros_like(inputs.advantages_N)
        count = int(inputs.mask_N.sum())
        if not count:
            return weights_N
        covariances_N = token_covariances(inputs.logprobs_N, inputs.advantages_N, inputs.mask_N)
        chosen = covariances_N.topk(max(1, int(self.share * count))).indices
        return weights_N.index_fill(0, chosen, self.coefficient)
