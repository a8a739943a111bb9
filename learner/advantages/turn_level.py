"""Turn-level term from a privileged progress signal, added to the group advantage.

    r_t = progress_{t+1} - progress_t,   G_t = sum over u >= t of discount^(u-t) r_u
    Z_t = (G_t - mean) / (std + 1e-6) over all turns of the group (ddof 1),   A = A_group + w * Z_t

Progress is a training signal only, never part of success. K turns, J trajectories, N tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from learner.advantages.group_moments import group_means, group_stds
from learner.layout import TokenLayout

EPSILON = 1e-6


def discounted_gains(progress: Sequence[float], *, discount: float = 0.8) -> tuple[float, ...]:
    """G_t of every turn from the progress before the first turn and after each (T + 1 numbers give T gains)."""
    if not progress:
        raise ValueError("progress must hold at least its initial value")
    gains: list[float] = []
    gain = 0.0
    for index in range(len(progress) - 1, 0, -1):
        gain = progress[index] - progress[index - 1] + discount * gain
        gains.append(gain)
    return tuple(reversed(gains))


def turn_terms(gains_K: Tensor, group_index_K: Tensor, has_progress_K: Tensor) -> Tensor:
    """Z of every turn; 0 for turns without progress, which also stay out of the group's mean and std.

    A trajectory with any progress value missing has `has_progress_K` false on all its turns.
    """
    terms_K = torch.zeros_like(gains_K)
    known = has_progress_K.bool()
    gains, group_index = gains_K[known], group_index_K[known]
    centred = gains - group_means(gains, group_index)
    terms_K[known] = centred / (group_stds(gains, group_index) + EPSILON)
    return terms_K


def token_advantages(
    layout: TokenLayout, advantages_N: Tensor, turn_terms_K: Tensor, *, turn_weight: float = 1.0
) -> Tensor:
    """Advantage of every token, plus `turn_weight` times its turn's term."""
    return advantages_N + turn_weight * turn_terms_K[layout.turn_index_N]
