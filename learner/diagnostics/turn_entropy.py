"""Mean token entropy by position in the episode. N tokens, K turns.

Finished episodes contribute nothing to later turns: only tokens that exist are averaged.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.layout import TokenLayout, sum_by, turn_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyLate:
    """Token means in nats; absent where no token qualifies."""

    early: float | None
    late: float | None


def entropy_by_turn(entropies_N: Tensor, mask_N: Tensor, layout: TokenLayout) -> tuple[float | None, ...]:
    """Token-mean entropy of turn 0, 1, 2 ... over all trajectories; absent where no trajectory has a masked token."""
    positions_K = turn_positions(layout)
    size = int(positions_K.max()) + 1 if positions_K.numel() else 0
    positions_N, mask_N = positions_K[layout.turn_index_N], mask_N.double()
    sums = sum_by(entropies_N.detach().double() * mask_N, positions_N, size)
    counts = sum_by(mask_N, positions_N, size)
    return tuple(s / n if n else None for s, n in zip(sums.tolist(), counts.tolist(), strict=True))


def early_late_thirds(entropies_N: Tensor, mask_N: Tensor, layout: TokenLayout) -> EarlyLate:
    """Token means over the first and the last max(1, T // 3) turns of each trajectory of T turns."""
    positions_K = turn_positions(layout)
    ones_K = torch.ones_like(layout.trajectory_index_K)
    num_turns_K = sum_by(ones_K, layout.trajectory_index_K, layout.num_trajectories)[layout.trajectory_index_K]
    third_K = (num_turns_K // 3).clamp(min=1)
    is_early_N = (positions_K < third_K)[layout.turn_index_N]
    is_late_N = (positions_K >= num_turns_K - third_K)[layout.turn_index_N]
    return EarlyLate(
        early=_masked_mean(entropies_N, mask_N.bool() & is_early_N),
        late=_masked_mean(entropies_N, mask_N.bool() & is_late_N),
    )


def _masked_mean(values_N: Tensor, mask_N: Tensor) -> float | None:
    chosen = values_N.detach()[mask_N]
    return chosen.double().mean().item() if chosen.numel() else None
