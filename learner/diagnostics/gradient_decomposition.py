"""How much of a gradient is signal: norms of the task's and the regularisers' gradients over reward variance (RAGEN-2).

Groups are sorted into buckets by the standard deviation of their returns; for each bucket and each component of the
loss one backward pass is taken, its norm recorded, and no optimizer step made. The norm of a mean over few samples
contains noise of the order of 1 / sqrt(n): compare buckets of equal size and report n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Backward = Callable[[], None]
"""Adds the gradient of one component to the parameters' `grad`."""

REGULARISERS = ("entropy", "kl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """Gradient norms of one bucket, before clipping; `norms` by component, the regulariser is entropy and KL as one."""

    norms: Mapping[str, float]
    regulariser: float

    @property
    def dominance(self) -> float:
        """Regulariser over regulariser + task; 0 without any gradient."""
        total = self.regulariser + self.norms["task"]
        return self.regulariser / total if total > 0 else 0.0


def decompose(components: Mapping[str, Backward], parameters: Sequence[Tensor]) -> Decomposition:
    """Norms of the components `task`, `entropy`, `kl` and any other; leaves no gradient behind."""
    norms = {name: _norm([backward], parameters) for name, backward in components.items()}
    regularisers = [components[name] for name in REGULARISERS if name in components]
    return Decomposition(norms=norms, regulariser=_norm(regularisers, parameters))


def _norm(backwards: Sequence[Backward], parameters: Sequence[Tensor]) -> float:
    for parameter in parameters:
        parameter.grad = None
    for backward in backwards:
        backward()
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0
    for parameter in parameters:
        parameter.grad = None
    return norm


def quantile_buckets(stds: Sequence[float], num_buckets: int) -> list[list[int]]:
    """Groups in equal buckets by rising standard deviation, the remainder in the last; fewer groups, fewer buckets."""
    order = sorted(range(len(stds)), key=lambda index: stds[index])
    num_buckets = min(num_buckets, len(order))
    if num_buckets < 1:
        return []
    size = len(order) // num_buckets
    buckets = [order[index * size : (index + 1) * size] for index in range(num_buckets)]
    buckets[-1].extend(order[num_buckets * size :])
    return buckets
