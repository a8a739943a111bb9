"""What every off-policy correction is given and what it answers. N tokens.

A correction fixes, before the first micro-batch: the policy the PPO ratio is taken to (the anchor), a detached weight
per token, and the final mask.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.layout import TokenLayout
from learner.losses.ratio import log_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionLimits:
    """Numbers the corrections share; each says which it reads."""

    cap: float = 2.0
    """Upper bound C of the weight proximal / behaviour."""
    over_cap: str = "truncate"
    """truncate: the weight becomes the cap (token TIS); drop: it becomes 0, still counted in means (AReaL)."""
    lower: float = 0.5
    """Smallest weight that icepop and the rejecting modes accept."""
    upper: float = 5.0
    """Largest weight that icepop and the rejecting modes accept."""

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise ValueError(f"cap must be >= 1, got {self.cap}")
        if self.over_cap not in ("truncate", "drop"):
            raise ValueError(f"over_cap must be truncate or drop, got {self.over_cap!r}")
        if not 0 <= self.lower <= 1 <= self.upper:
            raise ValueError(f"need lower <= 1 <= upper, got {self.lower} and {self.upper}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorrectionInputs:
    """Logprobs of the sampled tokens at the start of the step and when they were sampled."""

    proximal_logprobs_N: Tensor
    """Rules of the update's own forward pass do not look at them."""
    behavior_logprobs_N: Tensor
    mask_N: Tensor
    layout: TokenLayout
    lags_N: Tensor | None = None
    """Training steps since each token was sampled; only log_linear asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interpolation:
    """What the loss needs to find anchor and weight from its own forward pass: they lie between two policies."""

    behavior_logprobs_N: Tensor
    shares_N: Tensor
    """How far each anchor lies from behaviour (0) to the current policy (1), in log space."""
    cap: float
    """Upper bound of the weight anchor / behaviour."""

    def at(self, logprobs_N: Tensor) -> tuple[Tensor, Tensor]:
        """Anchor and weight of every token at these policy logprobs, both detached."""
        with torch.no_grad():
            # lerp gives the current policy itself at a share of 1, not a rounding beside it.
            anchor_N = torch.lerp(self.behavior_logprobs_N, logprobs_N, self.shares_N)
            return anchor_N, behavior_weights(anchor_N, self.behavior_logprobs_N).clamp(max=self.cap)

    def take(self, index_N: Tensor | slice) -> "Interpolation":
        """Those of some tokens."""
        return Interpolation(
            behavior_logprobs_N=self.behavior_logprobs_N[index_N], shares_N=self.shares_N[index_N], cap=self.cap
        )

    def to(self, device: torch.device) -> "Interpolation":
        """The same on another device."""
        return Interpolation(
            behavior_logprobs_N=self.behavior_logprobs_N.to(device), shares_N=self.shares_N.to(device), cap=self.cap
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """`weights_N` multiplies the policy loss and the reference KL; `mask_N` is the final mask."""

    anchor_logprobs_N: Tensor
    weights_N: Tensor
    mask_N: Tensor
    interpolation: Interpolation | None = None
    """Set where anchor and weight are only known in the update's forward pass; it then stands for the two above."""


def interpolated(limits: CorrectionLimits, inputs: CorrectionInputs, shares_N: Tensor) -> Correction:
    """A correction whose anchor and weight only the update's own forward pass gives; reads cap."""
    return Correction(
        anchor_logprobs_N=inputs.behavior_logprobs_N,
        weights_N=torch.ones_like(inputs.behavior_logprobs_N),
        mask_N=inputs.mask_N,
        interpolation=Interpolation(behavior_logprobs_N=inputs.behavior_logprobs_N, shares_N=shares_N, cap=limits.cap),
    )


CorrectionRule = Callable[[CorrectionLimits, CorrectionInputs], Correction]


def behavior_weights(proximal_logprobs_N: Tensor, behavior_logprobs_N: Tensor) -> Tensor:
    """Untruncated importance weight proximal / behaviour of each token."""
    return log_ratio(proximal_logprobs_N, behavior_logprobs_N).exp()
