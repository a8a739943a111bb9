"""GRPO (Shao et al. 2024): return relative to the group's mean, in units of the group's standard deviation."""

import torch
from torch import Tensor

from learner.advantages.group_moments import group_means, group_sizes, group_stds

EPSILON = 1e-6


def grpo(returns_J: Tensor, group_index_J: Tensor) -> Tensor:
    """(R - mean) / (std + 1e-6) with ddof 1; a group of one uses mean 0 and std 1."""
    centred_J = returns_J - group_means(returns_J, group_index_J)
    normalised_J = centred_J / (group_stds(returns_J, group_index_J) + EPSILON)
    is_alone_J = group_sizes(group_index_J, returns_J) == 1
    return torch.where(is_alone_J, returns_J / (1 + EPSILON), normalised_J)
