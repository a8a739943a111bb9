"""Dr.GRPO (Liu et al. 2025): return relative to the group's mean, without division by the standard deviation."""

from torch import Tensor

from learner.advantages.standardise import standardise


def dr_grpo(returns_J: Tensor, group_index_J: Tensor) -> Tensor:
    """R - mean; a group of one keeps its return."""
    return standardise(returns_J, group_index_J, divide_by_std=False)
