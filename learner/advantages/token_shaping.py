"""What reshapes advantages token by token, once they are normalised and before the loss. N kept tokens.

A shaper looks at the policy as it is before the update; with one optimizer step per batch that is the policy under
training. An advantage of 0 takes a token out of the policy loss and leaves it in every denominator.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapingInputs:
    """Detached tensors of the kept tokens; `anchor_logprobs_N` is what the PPO ratio is taken to."""

    advantages_N: Tensor
    logprobs_N: Tensor
    entropies_N: Tensor
    anchor_logprobs_N: Tensor
    mask_N: Tensor
    seed: str
    """Fixes random choices of the batch."""


AdvantageShaper = Callable[[ShapingInputs], Tensor]
"""Gives the N new advantages."""
