"""Entropy advantage (Cheng et al. 2025): a detached bonus for uncertain tokens that never flips an advantage's sign."""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.advantages.token_shaping import ShapingInputs


def with_entropy_bonus(advantages_N: Tensor, entropies_N: Tensor, *, alpha: float = 0.4, kappa: float = 2.0) -> Tensor:
    """A + min(alpha * H, |A| / kappa), after normalisation; the paper has alpha 0.4 (GRPO) and 0.1 (PPO). N tokens."""
    if kappa <= 1:
        raise ValueError(f"kappa must be > 1 to keep the sign of the advantage, got {kappa}")
    return advantages_N + torch.minimum(alpha * entropies_N.detach(), advantages_N.abs() / kappa)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyAdvantage:
    """The bonus as a shaper."""

    alpha: float = 0.4
    """Bonus per nat."""
    kappa: float = 2.0
    """The bonus is at most |A| / kappa."""

    def __call__(self, inputs: ShapingInputs) -> Tensor:
        """Advantages with the bonus."""
        return with_entropy_bonus(inputs.advantages_N, inputs.entropies_N, alpha=self.alpha, kappa=self.kappa)
