"""GRPO (Shao et al. 2024): return relative to the group's mean, in units of the group's standard deviation."""

from torch import Tensor

from learner.advantages.standardise import standardise


def grpo(returns_J: Tensor, group_index_J: Tensor) -> Tensor:
    """(R - mean) / (std + 1e-6) with ddof 1; a group of one uses mean 0 and std 1."""
    return standardise(returns_J, group_index_J)
