"""GSPO (Zheng et al. 2025): one length-normalised ratio per trajectory, clipped as a whole. N tokens, J trajectories.

The ratio joins all tokens of a trajectory, so this loss needs `learner.head.recompute` and whole trajectories at a
time.
"""

import torch
from torch import Tensor

from learner.layout import TokenLayout, sum_by
from learner.losses.ratio import log_ratio


def sequence_ratios(logprobs_N: Tensor, anchor_logprobs_N: Tensor, mask_N: Tensor, layout: TokenLayout) -> Tensor:
    """exp of the mean log-ratio over each trajectory's masked tokens."""
    mask_N = mask_N.to(logprobs_N.dtype)
    index_N, size = layout.trajectory_index_N, layout.num_trajectories
    sums_J = sum_by(log_ratio(logprobs_N, anchor_logprobs_N) * mask_N, index_N, size)
    return (sums_J / sum_by(mask_N, index_N, size).clamp(min=1)).exp()


def sequence_surrogate(
    ratios_J: Tensor, advantages_J: Tensor, *, clip_low: float = 3e-4, clip_high: float = 4e-4
) -> Tensor:
    """Unweighted clipped loss per trajectory (to be minimised)."""
    clipped_J = ratios_J.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantages_J * ratios_J, -advantages_J * clipped_J)
