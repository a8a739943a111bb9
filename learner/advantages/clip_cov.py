"""Clip-Cov (Cui et al. 2025, arXiv 2505.22617): tokens of high covariance, drawn at random, get no policy gradient."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.advantages.covariance import token_covariances
from learner.advantages.token_shaping import ShapingInputs
from learner.losses.ppo import PpoOptions, clip_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCov:
    ppo: PpoOptions
    """Tokens that its clip decides have no gradient anyway and are not drawn."""
    share: float = 2e-4
    """Share of the masked tokens that is drawn, rounded down but at least one."""
    low: float = 1.0
    """Smallest covariance that is drawn, exclusive."""
    high: float = 5.0
    """Largest, exclusive."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        if not self.low < self.high:
            raise ValueError(f"need low < high, got {self.low} and {self.high}")

    def __call__(self, inputs: ShapingInputs) -> Tensor:
        """Advantages, 0 at the drawn tokens."""
        covariances_N = token_covariances(inputs.logprobs_N, inputs.advantages_N, inputs.mask_N)
        is_clipped_N, _ = clip_flags(inputs.logprobs_N, inputs.anchor_logprobs_N, inputs.advantages_N, self.ppo)
        candidates = ((covariances_N > self.low) & (covariances_N < self.high) & ~is_clipped_N).nonzero()[:, 0].tolist()
        wanted = max(1, int(self.share * int(inputs.mask_N.sum())))
        drawn = random.Random(f"{inputs.seed}/clip_cov").sample(candidates, min(wanted, len(candidates)))
        return inputs.advantages_N.index_fill(0, torch.tensor(drawn, dtype=torch.int64), 0.0)
