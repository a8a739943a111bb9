"""GSPO (Zheng et al. 2025): one length-normalised ratio per trajectory, clipped as a whole. N tokens, J trajectories.

    s_j = exp(mean over the tokens of j of (log pi - log anchor)),    loss = mean over j of max(-A s, -A clip(s))

As a loss per token it is the PPO surrogate with another anchor: log pi, detached, minus log s_j. Its ratio is s_j at
every token of j, and under `seq_mean_token_mean` its gradient is that of the sequence loss (GSPO-token, the paper's
section 4.3, which also takes advantages per token). log pi are the logprobs before the update, so the tokens must be
scored again before every further optimizer step.
"""

import torch
from torch import Tensor

from learner.layout import TokenLayout, sum_by
from learner.losses.ratio import log_ratio

CLIP_LOW, CLIP_HIGH = 3e-4, 4e-4


def sequence_log_ratios(logprobs_N: Tensor, anchor_logprobs_N: Tensor, mask_N: Tensor, layout: TokenLayout) -> Tensor:
    """Mean log-ratio over each trajectory's masked tokens; 0 for a trajectory without any."""
    mask_N = mask_N.to(logprobs_N.dtype)
    index_N, size = layout.trajectory_index_N, layout.num_trajectories
    sums_J = sum_by(log_ratio(logprobs_N, anchor_logprobs_N) * mask_N, index_N, size)
    return sums_J / sum_by(mask_N, index_N, size).clamp(min=1)


def sequence_ratios(logprobs_N: Tensor, anchor_logprobs_N: Tensor, mask_N: Tensor, layout: TokenLayout) -> Tensor:
    """exp of the mean log-ratio over each trajectory's masked tokens."""
    return sequence_log_ratios(logprobs_N, anchor_logprobs_N, mask_N, layout).exp()


def sequence_surrogate(
    ratios_J: Tensor, advantages_J: Tensor, *, clip_low: float = CLIP_LOW, clip_high: float = CLIP_HIGH
) -> Tensor:
    """Unweighted clipped loss per trajectory (to be minimised)."""
    clipped_J = ratios_J.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantages_J * ratios_J, -advantages_J * clipped_J)


def sequence_anchor(logprobs_N: Tensor, anchor_logprobs_N: Tensor, mask_N: Tensor, layout: TokenLayout) -> Tensor:
    """The anchor with which the PPO surrogate is GSPO's, at policy logprobs `logprobs_N`."""
    ratios_J = sequence_log_ratios(logprobs_N, anchor_logprobs_N, mask_N, layout)
    return (logprobs_N - ratios_J[layout.trajectory_index_N]).detach()
