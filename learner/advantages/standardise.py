"""Values relative to their own group: of returns (GRPO), of turns at one anchor (GiGPO) or of one tag (RLVMR)."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from learner.advantages.group_moments import group_means, group_sizes, group_stds

EPSILON = 1e-6


def standardise(values_J: Tensor, group_index_J: Tensor, *, ddof: int = 1, divide_by_std: bool = True) -> Tensor:
    """(x - mean) / (std + 1e-6), or x - mean; a group of one uses mean 0 and std 1."""
    is_alone_J = group_sizes(group_index_J, values_J) == 1
    means_J = group_means(values_J, group_index_J).masked_fill(is_alone_J, 0.0)
    if not divide_by_std:
        return values_J - means_J
    stds_J = group_stds(values_J, group_index_J, ddof=ddof).masked_fill(is_alone_J, 1.0)
    return (values_J - means_J) / (stds_J + EPSILON)


def index_of(keys: Sequence[Hashable]) -> Tensor:
    """Numbers of the keys (int64), from 0 in order of appearance: equal keys, equal numbers."""
    number_by_key = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return torch.tensor([number_by_key[key] for key in keys], dtype=torch.int64)
