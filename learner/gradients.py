"""Gradients of several ranks, summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from learner.ranks import Ranks


def add_gradients(ranks: Ranks, parameters: Sequence[nn.Parameter]) -> None:
    """Give every rank the sum of all ranks' gradients; a parameter that got none anywhere keeps none."""
    has_gradient = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    ranks.add([has_gradient])
    reached = [parameter for parameter, count in zip(parameters, has_gradient.tolist(), strict=True) if count]
    for parameter in reached:
        if parameter.grad is None:
            # This rank had no row for it, and must still take part in the sum.
            parameter.grad = torch.zeros_like(parameter)
    ranks.add([parameter.grad for parameter in reached if parameter.grad is not None])
