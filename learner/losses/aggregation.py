"""Per-token weights of a mean, fixed from whole-step counts.

A loss term is the sum of weight x value over tokens, whatever the micro-batches, so splitting a step changes nothing.
Turns and trajectories without a token left by the mask drop out of the means. N tokens, K turns, J trajectories.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from learner.layout import TokenLayout, sum_by

Weigher = Callable[[TokenLayout, Tensor], Tensor]


def token_weights(
    kind: str,
    layout: TokenLayout,
    mask_N: Tensor,
    *,
    constant: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Weights of the mean called `kind`, counted in float64; zero where the mask is zero.

    `constant` divides the token sum of a trajectory, averaged over trajectories (Dr.GRPO with the token limit); only
    that kind takes it.
    """
    if (constant is None) == (kind == "constant"):
        raise ValueError(f"aggregation {kind!r} with constant={constant}")
    mask_N = mask_N.double()
    if constant is not None:
        return (_per_trajectory(layout, mask_N) / constant).to(dtype)
    if kind not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {kind!r}; known: {', '.join(sorted((*AGGREGATIONS, 'constant')))}")
    return AGGREGATIONS[kind](layout, mask_N).to(dtype)


def token_mean(layout: TokenLayout, mask_N: Tensor) -> Tensor:
    """Every token counts alike."""
    return mask_N / mask_N.sum().clamp(min=1)


def seq_mean_token_mean(layout: TokenLayout, mask_N: Tensor) -> Tensor:
    """Mean over the tokens of a trajectory, then over trajectories."""
    num_tokens_J = sum_by(mask_N, layout.trajectory_index_N, layout.num_trajectories)
    return _per_trajectory(layout, mask_N) / num_tokens_J.clamp(min=1)[layout.trajectory_index_N]


def turn_mean(layout: TokenLayout, mask_N: Tensor) -> Tensor:
    """Mean over the tokens of a turn, then over all turns (the row mean of a turn-per-row layout)."""
    num_tokens_K = sum_by(mask_N, layout.turn_index_N, layout.num_turns)
    num_turns = (num_tokens_K > 0).sum().clamp(min=1)
    return mask_N / num_tokens_K.clamp(min=1)[layout.turn_index_N] / num_turns


def nested(layout: TokenLayout, mask_N: Tensor) -> Tensor:
    """Mean over tokens of a turn, turns of a trajectory, trajectories (EPO's multi-turn entropy)."""
    num_tokens_K = sum_by(mask_N, layout.turn_index_N, layout.num_turns)
    num_turns_J = sum_by((num_tokens_K > 0).double(), layout.trajectory_index_K, layout.num_trajectories)
    num_turns_N = num_turns_J.clamp(min=1)[layout.trajectory_index_N]
    return _per_trajectory(layout, mask_N) / num_tokens_K.clamp(min=1)[layout.turn_index_N] / num_turns_N


def _per_trajectory(layout: TokenLayout, mask_N: Tensor) -> Tensor:
    num_tokens_J = sum_by(mask_N, layout.trajectory_index_N, layout.num_trajectories)
    return mask_N / (num_tokens_J > 0).sum().clamp(min=1)


AGGREGATIONS: Mapping[str, Weigher] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "turn_mean": turn_mean,
    "nested": nested,
}
