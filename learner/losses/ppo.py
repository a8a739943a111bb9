"""The clipped PPO surrogate, per token, with the optional dual clip (Ye et al. 2020). N tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.losses.ratio import log_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoOptions:
    """Bounds of the probability ratio (Schulman et al. 2017; apart from each other as in DAPO, Yu et al. 2025).

    All are plain ratios without unit. ValueError for clip_low outside (0, 1], clip_high not above 0, or dual_clip not
    above 1.
    """

    clip_low: float = 0.2
    """How far the ratio may fall below 1 before the gain stops counting."""
    clip_high: float = 0.2
    """How far the ratio may rise above 1; DAPO's clip-higher uses 0.28."""
    dual_clip: float | None = None
    """Bound of the loss at negative advantage, in multiples of |advantage|; off when absent."""

    def __post_init__(self) -> None:
        if not 0 < self.clip_low <= 1:
            raise ValueError(f"clip_low must be in (0, 1], got {self.clip_low}")
        if self.clip_high <= 0:
            raise ValueError(f"clip_high must be > 0, got {self.clip_high}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be > 1, got {self.dual_clip}")


def clipped_surrogate(
    logprobs_N: Tensor, anchor_logprobs_N: Tensor, advantages_N: Tensor, options: PpoOptions
) -> Tensor:
    """Unweighted loss per token (to be minimised); the ratio is taken to `anchor_logprobs_N`."""
    plain_N, clipped_N = _branches(logprobs_N, anchor_logprobs_N, advantages_N, options)
    losses_N = torch.maximum(plain_N, clipped_N)
    if options.dual_clip is None:
        return losses_N
    bounded_N = torch.minimum(losses_N, -advantages_N * options.dual_clip)
    return torch.where(advantages_N < 0, bounded_N, losses_N)


def clip_flags(
    logprobs_N: Tensor, anchor_logprobs_N: Tensor, advantages_N: Tensor, options: PpoOptions
) -> tuple[Tensor, Tensor]:
    """Which tokens the clip decides, and which the dual clip decides (their gradient is zero)."""
    plain_N, clipped_N = _branches(logprobs_N, anchor_logprobs_N, advantages_N, options)
    is_clipped_N = clipped_N > plain_N
    if options.dual_clip is None:
        return is_clipped_N, torch.zeros_like(is_clipped_N)
    bound_N = -advantages_N * options.dual_clip
    return is_clipped_N, (advantages_N < 0) & (torch.maximum(plain_N, clipped_N) > bound_N)


def _branches(
    logprobs_N: Tensor, anchor_logprobs_N: Tensor, advantages_N: Tensor, options: PpoOptions
) -> tuple[Tensor, Tensor]:
    ratio_N = log_ratio(logprobs_N, anchor_logprobs_N).exp()
    clipped_ratio_N = ratio_N.clamp(1 - options.clip_low, 1 + options.clip_high)
    return -advantages_N * ratio_N, -advantages_N * clipped_ratio_N
