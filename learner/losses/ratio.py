"""Importance ratios in log space, clamped so that a logprob of -100 gives a large finite number and no NaN."""

from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def log_ratio(logprobs: Tensor, anchor_logprobs: Tensor) -> Tensor:
    """Clamped `logprobs - anchor_logprobs`; no gradient where the clamp is active."""
    return (logprobs - anchor_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
