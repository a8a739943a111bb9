"""Decoupled PPO (Hilton et al. 2021) with the weight bounded per token: truncated (TIS) or dropped (AReaL)."""

import torch

from learner.losses.correction import Correction, CorrectionInputs, CorrectionLimits, behavior_weights, interpolated


def decoupled(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """Ratio to the proximal policy, weight from there back to the data; reads cap and over_cap."""
    weights_N = behavior_weights(inputs.proximal_logprobs_N, inputs.behavior_logprobs_N)
    if limits.over_cap == "truncate":
        weights_N = weights_N.clamp(max=limits.cap)
    else:
        weights_N = weights_N.masked_fill(weights_N > limits.cap, 0.0)
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=weights_N, mask_N=inputs.mask_N)


def decoupled_in_update(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """`decoupled`, truncated, for the one optimizer step of a batch: the policy it starts from is the proximal one."""
    if limits.over_cap != "truncate":
        raise ValueError("over_cap = drop needs the proximal logprobs before the update")
    return interpolated(limits, inputs, torch.ones_like(inputs.behavior_logprobs_N))
