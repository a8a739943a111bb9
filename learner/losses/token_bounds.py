"""Per-token bounds on the weight proximal / behaviour: IcePop keeps the denominator, rejection shrinks it."""

import torch
from torch import Tensor

from learner.losses.correction import Correction, CorrectionInputs, CorrectionLimits, behavior_weights


def icepop(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """The weight of a token outside [lower, upper] is 0; the token still counts in means."""
    weights_N, is_inside_N = _bounded(limits, inputs)
    weights_N = weights_N.masked_fill(~is_inside_N, 0.0)
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=weights_N, mask_N=inputs.mask_N)


def token_rejection(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """A token outside [lower, upper] leaves the mask and with it every mean; the weights of the others are 1."""
    weights_N, is_inside_N = _bounded(limits, inputs)
    mask_N = inputs.mask_N.bool() & is_inside_N
    ones_N = torch.ones_like(weights_N)
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=ones_N, mask_N=mask_N)


def _bounded(limits: CorrectionLimits, inputs: CorrectionInputs) -> tuple[Tensor, Tensor]:
    weights_N = behavior_weights(inputs.proximal_logprobs_N, inputs.behavior_logprobs_N)
    return weights_N, (weights_N >= limits.lower) & (weights_N <= limits.upper)
