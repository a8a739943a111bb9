"""Proximal logprobs without a forward pass (A-3PO): linear between behaviour and current in log space. N tokens.

The proximal policy is one training step behind the weights under training, as in AReaL: a token that is d steps old has
share (d - 1) / d of the current policy, a fresh one all of it. Data of lag 1 is thus anchored at the policy that
sampled it, and the clip then counts the lag as movement.
"""

from torch import Tensor

from learner.losses.correction import Correction, CorrectionInputs, CorrectionLimits, interpolated


def current_shares(lags_N: Tensor) -> Tensor:
    """Share of the current policy for tokens of these ages in training steps, floating-point: in [0, 1]."""
    return ((lags_N - 1) / lags_N.clamp(min=1)).masked_fill(lags_N < 1, 1.0)


def log_linear(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """The approximation as a correction; reads cap and the tokens' lags."""
    if inputs.lags_N is None:
        raise ValueError("log_linear needs the lag of every token")
    return interpolated(limits, inputs, current_shares(inputs.lags_N.to(inputs.behavior_logprobs_N.dtype)))
