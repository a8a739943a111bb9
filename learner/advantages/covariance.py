"""How much each token contributes to the fall of entropy (Cui et al. 2025, arXiv 2505.22617). N tokens."""

from torch import Tensor


def token_covariances(logprobs_N: Tensor, advantages_N: Tensor, mask_N: Tensor) -> Tensor:
    """(log p - mean) * (A - mean) over the masked tokens; -inf elsewhere."""
    mask_N = mask_N.bool()
    count = mask_N.sum().clamp(min=1)
    covariances_N = _centred(logprobs_N, mask_N, count) * _centred(advantages_N, mask_N, count)
    return covariances_N.masked_fill(~mask_N, -float("inf"))


def _centred(values_N: Tensor, mask_N: Tensor, count: Tensor) -> Tensor:
    return values_N - values_N.masked_fill(~mask_N, 0.0).sum() / count
