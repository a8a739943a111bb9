"""What is logged about a step's policy loss; nothing here has a gradient. N tokens."""

import torch
from torch import Tensor

from learner.losses.kl import k3
from learner.losses.off_policy import OffPolicyOptions, behavior_weights
from learner.losses.ppo import PpoOptions, clip_flags
from learner.losses.ratio import log_ratio

_QUANTILES = (0.01, 0.5, 0.99)


@torch.no_grad()
def update_statistics(
    logprobs_N: Tensor, anchor_logprobs_N: Tensor, advantages_N: Tensor, mask_N: Tensor, options: PpoOptions
) -> dict[str, float]:
    """Movement of the policy within the step: clip fractions, ratio to the anchor, advantage mean and std (ddof 1)."""
    mask_N = mask_N.bool()
    if not mask_N.any():
        return {}
    logprobs, anchor, advantages = logprobs_N[mask_N], anchor_logprobs_N[mask_N], advantages_N[mask_N]
    is_clipped, is_dual_clipped = clip_flags(logprobs, anchor, advantages, options)
    return {
        "clip_fraction": _mean(is_clipped),
        "dual_clip_fraction": _mean(is_dual_clipped),
        "approx_kl_anchor": _mean(k3(anchor, logprobs)),
        "advantage_mean": _mean(advantages),
        "advantage_std": advantages.double().std().item() if advantages.numel() > 1 else 0.0,
        **_spread("ratio", log_ratio(logprobs, anchor).exp()),
    }


@torch.no_grad()
def mismatch_statistics(
    proximal_logprobs_N: Tensor, behavior_logprobs_N: Tensor, mask_N: Tensor, options: OffPolicyOptions
) -> dict[str, float]:
    """Distance between the policy that sampled and the one at the start of the step, before any truncation."""
    mask_N = mask_N.bool()
    if not mask_N.any():
        return {}
    proximal, behavior = proximal_logprobs_N[mask_N], behavior_logprobs_N[mask_N]
    weights = behavior_weights(proximal, behavior)
    return {
        "approx_kl_behavior": _mean(k3(behavior, proximal)),
        "mean_abs_log_weight": _mean((proximal - behavior).abs()),
        "share_at_cap": _mean(weights >= options.cap),
        "effective_sample_size": effective_sample_size(weights),
        **_spread("weight", weights),
    }


@torch.no_grad()
def mismatch_by_bucket(
    proximal_logprobs_N: Tensor, behavior_logprobs_N: Tensor, mask_N: Tensor, bucket_N: Tensor
) -> dict[int, dict[str, float]]:
    """Mean distance and effective sample size of the tokens of each bucket, such as a lag or a turn index."""
    mask_N = mask_N.bool()
    proximal, behavior, bucket = proximal_logprobs_N[mask_N], behavior_logprobs_N[mask_N], bucket_N[mask_N]
    return {
        number: {
            "mean_abs_log_weight": _mean((proximal - behavior)[bucket == number].abs()),
            "effective_sample_size": effective_sample_size(
                behavior_weights(proximal[bucket == number], behavior[bucket == number])
            ),
        }
        for number in bucket.unique().tolist()
    }


def effective_sample_size(weights: Tensor) -> float:
    """(sum w)^2 / (n * sum w^2): 1 when all weights are equal, 1/n when one token carries everything."""
    weights = weights.double()
    # Divided by the largest first: the square of exp(20) summed over a batch would lose the small ones.
    weights = weights / weights.max()
    return (weights.sum().square() / (weights.numel() * weights.square().sum())).item()


def quantile(values: Tensor, share: float) -> float:
    """Lower quantile by sorting rank; unlike torch.quantile it takes more than 2^24 numbers."""
    rank = min(values.numel(), int(share * values.numel()) + 1)
    return values.flatten().kthvalue(rank).values.item()


def _spread(name: str, values: Tensor) -> dict[str, float]:
    quantiles = {f"{name}_p{int(share * 100):02d}": quantile(values, share) for share in _QUANTILES}
    return {**quantiles, f"{name}_max": values.max().item()}


def _mean(values: Tensor) -> float:
    return values.double().mean().item()
