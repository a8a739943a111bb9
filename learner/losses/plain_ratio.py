"""The two modes without importance weights."""

import torch

from learner.losses.correction import Correction, CorrectionInputs, CorrectionLimits


def behaviour_ratio(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """Plain PPO against the policy that sampled: the clip then counts staleness as movement."""
    ones_N = torch.ones_like(inputs.behavior_logprobs_N)
    return Correction(anchor_logprobs_N=inputs.behavior_logprobs_N, weights_N=ones_N, mask_N=inputs.mask_N)


def none(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """Ratio to the proximal policy and no weight: staleness is ignored."""
    ones_N = torch.ones_like(inputs.proximal_logprobs_N)
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=ones_N, mask_N=inputs.mask_N)
