"""Where each trained token of a batch sits: token -> turn -> trajectory -> group.

N tokens, K turns, J trajectories, G groups. Everything is flat and unpadded, so no padding can enter a mean, and turns,
trajectories and groups are numbered over the whole step (all ranks, all micro-batches).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLayout:
    """Three index tensors (int64). A turn or trajectory may have no token here."""

    turn_index_N: Tensor
    trajectory_index_K: Tensor
    group_index_J: Tensor

    def __post_init__(self) -> None:
        _check_points_into("turn_index_N", self.turn_index_N, self.num_turns)
        _check_points_into("trajectory_index_K", self.trajectory_index_K, self.num_trajectories)

    @property
    def num_tokens(self) -> int:
        return self.turn_index_N.shape[0]

    @property
    def num_turns(self) -> int:
        return self.trajectory_index_K.shape[0]

    @property
    def num_trajectories(self) -> int:
        return self.group_index_J.shape[0]

    @property
    def num_groups(self) -> int:
        return int(self.group_index_J.max()) + 1 if self.num_trajectories else 0

    @property
    def trajectory_index_N(self) -> Tensor:
        return self.trajectory_index_K[self.turn_index_N]

    @property
    def group_index_K(self) -> Tensor:
        return self.group_index_J[self.trajectory_index_K]

    def take(self, index_N: Tensor | slice) -> "TokenLayout":
        """The same turns, trajectories and groups with only the chosen tokens."""
        return TokenLayout(
            turn_index_N=self.turn_index_N[index_N],
            trajectory_index_K=self.trajectory_index_K,
            group_index_J=self.group_index_J,
        )


def sum_by(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum of `values` over equal `index`, one number for each of 0..size-1."""
    return values.new_zeros(size).index_add_(0, index, values)


def turn_positions(layout: TokenLayout) -> Tensor:
    """Index of each of the K turns within its trajectory, by the order of the turns in the layout."""
    positions_K = torch.zeros_like(layout.trajectory_index_K)
    num_turns = [0] * layout.num_trajectories
    for turn, trajectory in enumerate(layout.trajectory_index_K.tolist()):
        positions_K[turn] = num_turns[trajectory]
        num_turns[trajectory] += 1
    return positions_K


def _check_points_into(name: str, index: Tensor, size: int) -> None:
    if index.dtype != torch.int64 or index.ndim != 1:
        raise ValueError(f"{name} must be a flat int64 tensor, got {index.dtype} of shape {tuple(index.shape)}")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
        raise ValueError(f"{name} points outside 0..{size - 1}")
