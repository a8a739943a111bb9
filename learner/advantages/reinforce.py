"""REINFORCE with the mean return of the whole batch as baseline; groups play no part."""

from torch import Tensor


def reinforce(returns_J: Tensor, group_index_J: Tensor) -> Tensor:
    """R - mean over all trajectories of the batch."""
    return returns_J - returns_J.mean() if returns_J.numel() else returns_J
