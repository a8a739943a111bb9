"""Token logprobs and entropies from full logits: the plain reference that `learner.head` is compared with.

N positions, V vocabulary. Logits are divided by the temperature, and sums run in float32 (float64 for float64 logits).
"""

import torch
from torch import Tensor


def token_logprobs(logits_NV: Tensor, target_ids_N: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Natural log probability of each target under softmax(logits / temperature)."""
    return _log_softmax(logits_NV, temperature).gather(1, target_ids_N[:, None])[:, 0]


def token_entropies(logits_NV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Entropy in nats over the full vocabulary; a logit of -inf counts as probability zero."""
    logp_NV = _log_softmax(logits_NV, temperature)
    finite_NV = logp_NV.masked_fill(logp_NV.isneginf(), 0.0)
    return -(logp_NV.exp() * finite_NV).sum(dim=1)


def _log_softmax(logits_NV: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    dtype = torch.float64 if logits_NV.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits_NV.to(dtype) / temperature, dim=-1)
