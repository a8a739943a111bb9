"""Soft alternative to the filter: advantages of a group are scaled by its reward spread. J trajectories."""

from torch import Tensor

from learner.advantages.group_moments import group_sizes, group_stds

_EPSILON = 1e-6


def group_weights(returns_J: Tensor, group_index_J: Tensor) -> Tensor:
    """std / (largest std + 1e-6) of each member's group; a group of one counts with std 1, as in GRPO."""
    is_alone_J = group_sizes(group_index_J, returns_J) == 1
    stds_J = group_stds(returns_J, group_index_J).masked_fill(is_alone_J, 1.0)
    return stds_J / (stds_J.max() + _EPSILON)
