"""RLOO (Ahmadian et al. 2024): return relative to the mean of the *other* members."""

import torch
from torch import Tensor

from learner.advantages.group_moments import group_means, group_sizes


def rloo(returns_J: Tensor, group_index_J: Tensor) -> Tensor:
    """R - mean of the others, which is (R - mean) * n / (n - 1); a group of one keeps its return."""
    sizes_J = group_sizes(group_index_J, returns_J)
    centred_J = returns_J - group_means(returns_J, group_index_J)
    return torch.where(sizes_J == 1, returns_J, centred_J * sizes_J / (sizes_J - 1).clamp(min=1))
