"""Muon: momentum, made orthogonal by a Newton-Schulz iteration, for the matrices of a network.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks" (quintic coefficients, Nesterov
momentum, scale by the square root of the aspect ratio).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Updates 2-d parameters only."""

    def __init__(self, params: Iterable[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
        buffer.lerp_(gradient, 1.0 - group["momentum"])
        direction = orthogonalise(gradient.lerp(buffer, group["momentum"]))
        aspect = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
        parameter.add_(direction, alpha=-group["lr"] * aspect)


def orthogonalise(matrix: Tensor) -> Tensor:
    """A matrix with the same singular vectors and singular values near one."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix) / (matrix.norm() + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
