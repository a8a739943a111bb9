"""The critic's loss and how well it explains its targets. N tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_value_loss(
    values_N: Tensor, old_values_N: Tensor, targets_N: Tensor, *, clip: float | None = None
) -> Tensor:
    """Unweighted loss per token: half the squared error, or that of the value held within `clip` of the old one.

    The larger of the two counts, so a value that has moved by more than `clip` gets no gradient for moving further.
    """
    losses_N = (values_N - targets_N).square()
    if clip is not None:
        held_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
        losses_N = torch.maximum(losses_N, (held_N - targets_N).square())
    return 0.5 * losses_N


@torch.no_grad()
def explained_variance(values_N: Tensor, targets_N: Tensor, mask_N: Tensor) -> float | None:
    """1 - Var(target - value) / Var(target): 1 is perfect, 0 no better than a constant; absent if targets are equal."""
    values, targets = values_N[mask_N.bool()].double(), targets_N[mask_N.bool()].double()
    if targets.numel() < 2:
        return None
    variance = targets.var(correction=0).item()
    if variance == 0:
        return None
    return 1.0 - (targets - values).var(correction=0).item() / variance
