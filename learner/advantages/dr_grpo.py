"""Dr.GRPO (Liu et al. 2025): return relative to the group's mean, without division by the standard deviation."""

import torch
from torch import Tensor

from learner.advantages.group_moments import group_means, group_sizes


def dr_grpo(returns_J: Tensor, group_index_J: Tensor) -> Tensor:
    """R - mean; a group of one keeps its return."""
    is_alone_J = group_sizes(group_index_J, returns_J) == 1
    return torch.where(is_alone_J, returns_J, returns_J - group_means(returns_J, group_index_J))
