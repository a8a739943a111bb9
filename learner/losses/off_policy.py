"""How the loss corrects for data that an older policy, or another engine, sampled.

N tokens. A correction fixes, before the first micro-batch: the policy the PPO ratio is taken to (the anchor), a
detached weight per token, and the final mask. Every mode is one function in `CORRECTIONS`, so a new one is a new file
and an entry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.layout import TokenLayout
from learner.losses.ratio import log_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyOptions:
    mode: str = "decoupled"
    """decoupled | behaviour_ratio | none; `none` ignores staleness and is biased unless the data is on-policy."""
    cap: float = 2.0
    """Upper bound C of the weight proximal / behaviour."""
    over_cap: str = "truncate"
    """truncate: the weight becomes the cap (token TIS); drop: it becomes 0, still counted in means (AReaL)."""

    def __post_init__(self) -> None:
        if self.mode not in CORRECTIONS:
            raise ValueError(f"unknown off-policy mode {self.mode!r}; known: {', '.join(CORRECTIONS)}")
        if self.cap < 1:
            raise ValueError(f"cap must be >= 1, got {self.cap}")
        if self.over_cap not in ("truncate", "drop"):
            raise ValueError(f"over_cap must be truncate or drop, got {self.over_cap!r}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorrectionInputs:
    """Logprobs of the sampled tokens at the start of the step and when they were sampled."""

    proximal_logprobs_N: Tensor
    behavior_logprobs_N: Tensor
    mask_N: Tensor
    layout: TokenLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """`weights_N` multiplies the policy loss and the reference KL; `mask_N` is the final mask."""

    anchor_logprobs_N: Tensor
    weights_N: Tensor
    mask_N: Tensor


def correct(options: OffPolicyOptions, inputs: CorrectionInputs) -> Correction:
    """Apply the chosen mode; all results are detached."""
    with torch.no_grad():
        return CORRECTIONS[options.mode](options, inputs)


def behavior_weights(proximal_logprobs_N: Tensor, behavior_logprobs_N: Tensor) -> Tensor:
    """Untruncated importance weight proximal / behaviour of each token."""
    return log_ratio(proximal_logprobs_N, behavior_logprobs_N).exp()


def decoupled(options: OffPolicyOptions, inputs: CorrectionInputs) -> Correction:
    """Decoupled PPO (Hilton et al. 2021): ratio to the proximal policy, weight from there back to the data."""
    weights_N = behavior_weights(inputs.proximal_logprobs_N, inputs.behavior_logprobs_N)
    if options.over_cap == "truncate":
        weights_N = weights_N.clamp(max=options.cap)
    else:
        weights_N = weights_N.masked_fill(weights_N > options.cap, 0.0)
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=weights_N, mask_N=inputs.mask_N)


def behaviour_ratio(options: OffPolicyOptions, inputs: CorrectionInputs) -> Correction:
    """Plain PPO against the policy that sampled: the clip then counts staleness as movement."""
    ones_N = torch.ones_like(inputs.behavior_logprobs_N)
    return Correction(anchor_logprobs_N=inputs.behavior_logprobs_N, weights_N=ones_N, mask_N=inputs.mask_N)


def none(options: OffPolicyOptions, inputs: CorrectionInputs) -> Correction:
    """Ratio to the proximal policy and no weight: staleness is ignored."""
    ones_N = torch.ones_like(inputs.proximal_logprobs_N)
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=ones_N, mask_N=inputs.mask_N)


CORRECTIONS: Mapping[str, Callable[[OffPolicyOptions, CorrectionInputs], Correction]] = {
    "decoupled": decoupled,
    "behaviour_ratio": behaviour_ratio,
    "none": none,
}
