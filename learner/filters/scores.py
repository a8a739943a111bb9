"""Scores of a group, from the shaped returns of its members (never normalised ones, which would all look alike)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReturns:
    """One number per member; `mean_gains` averages the gain over a member's turns, absent without progress."""

    returns: tuple[float, ...]
    mean_gains: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.returns) < 2:
            raise ValueError("a group of one has no variance; set group_size to 2 or more, or the filter to none")
        if self.mean_gains is not None and len(self.mean_gains) != len(self.returns):
            raise ValueError(f"{len(self.mean_gains)} mean gains for {len(self.returns)} members")


GroupScore = Callable[[GroupReturns], float]


def return_variance(group: GroupReturns) -> float:
    """Sample variance (ddof 1) of the shaped return over the members."""
    return sample_variance(group.returns)


def return_plus_turn_variance(group: GroupReturns) -> float:
    """The larger of the return's variance and the variance over members of the mean gain."""
    score = return_variance(group)
    return score if group.mean_gains is None else max(score, sample_variance(group.mean_gains))


def sample_variance(values: Sequence[float]) -> float:
    """Two-pass variance with ddof 1; exactly 0 for equal values."""
    if all(value == values[0] for value in values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def rv_std_over_mean(variances: Sequence[float]) -> float:
    """Population std over mean of a batch's reward variances: the higher, the more a filter helps; 0 without any."""
    mean = math.fsum(variances) / len(variances) if variances else 0.0
    if mean == 0:
        return 0.0
    return math.sqrt(math.fsum((value - mean) ** 2 for value in variances) / len(variances)) / mean


SCORES: Mapping[str, GroupScore] = {"return": return_variance, "return_plus_turn": return_plus_turn_variance}
