"""Proximal logprobs without a forward pass (A-3PO): linear between behaviour and current in log space. N tokens.

The proximal policy is one training step behind the weights under training, as in AReaL: a token that is d steps old has
share (d - 1) / d of the current policy, a fresh one all of it. Data of lag 1 is thus anchored at the policy that
sampled it, and the clip then counts the lag as movement.
"""

import torch
from torch import Tensor

from learner.losses.correction import Correction, CorrectionInputs, CorrectionLimits, Interpolation


def log_linear_proximal(
    behavior_logprobs_N: Tensor,
    current_logprobs_N: Tensor,
    *,
    behavior_step_N: Tensor,
    proximal_step: int,
    current_step: int,
) -> Tensor:
    """log b + a (log pi - log b), a = (proximal - behaviour) / (current - behaviour) in steps; 1 for fresh tokens."""
    shares_N = current_shares(
        behavior_step_N.to(current_logprobs_N.dtype), proximal_step=proximal_step, current_step=current_step
    )
    return behavior_logprobs_N + shares_N * (current_logprobs_N.detach() - behavior_logprobs_N)


def current_shares(behavior_step_N: Tensor, *, proximal_step: int, current_step: int) -> Tensor:
    """a of every token, from floating-point training steps: the current policy's share, in [0, 1]."""
    distance_N = (current_step - behavior_step_N).clamp(min=1)
    shares_N = ((proximal_step - behavior_step_N) / distance_N).clamp(0.0, 1.0)
    return shares_N.masked_fill(behavior_step_N >= current_step, 1.0)


def log_linear(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """The approximation as a correction; reads cap and the tokens' lags."""
    if inputs.lags_N is None:
        raise ValueError("log_linear needs the lag of every token")
    steps_N = -inputs.lags_N.to(inputs.behavior_logprobs_N.dtype)
    interpolation = Interpolation(
        behavior_logprobs_N=inputs.behavior_logprobs_N,
        shares_N=current_shares(steps_N, proximal_step=-1, current_step=0),
        cap=limits.cap,
    )
    return Correction(
        anchor_logprobs_N=inputs.behavior_logprobs_N,
        weights_N=torch.ones_like(inputs.behavior_logprobs_N),
        mask_N=inputs.mask_N,
        interpolation=interpolation,
    )
