"""Mean and standard deviation within groups. J trajectories (or turns), G groups."""

from torch import Tensor

from learner.layout import sum_by


def group_sizes(group_index_J: Tensor, like: Tensor) -> Tensor:
    """Number of members of each member's own group, in the dtype of `like`."""
    ones_J = like.new_ones(group_index_J.shape[0])
    return sum_by(ones_J, group_index_J, _num_groups(group_index_J))[group_index_J]


def group_means(values_J: Tensor, group_index_J: Tensor) -> Tensor:
    """Mean of each member's own group."""
    sums_J = sum_by(values_J, group_index_J, _num_groups(group_index_J))[group_index_J]
    return sums_J / group_sizes(group_index_J, values_J)


def group_stds(values_J: Tensor, group_index_J: Tensor, *, ddof: int = 1) -> Tensor:
    """Standard deviation of each member's own group, of sample (ddof 1) or population (0); 0 in a group of one."""
    squares_J = (values_J - group_means(values_J, group_index_J)).square()
    sums_J = sum_by(squares_J, group_index_J, _num_groups(group_index_J))[group_index_J]
    return (sums_J / (group_sizes(group_index_J, values_J) - ddof).clamp(min=1)).sqrt()


def _num_groups(group_index_J: Tensor) -> int:
    return int(group_index_J.max()) + 1 if group_index_J.numel() else 0
