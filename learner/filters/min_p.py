"""Keeps groups whose standard deviation reaches a share of the largest one. Scores are variances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, keep, rank


@dataclass(frozen=True, slots=True, kw_only=True)
class MinP:
    share: float = 0.2
    """Least standard deviation, in units of the largest."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")

    def select(self, scores: Sequence[float]) -> Selection:
        """Keep by share of the maximum; without any variance every group reaches it, as in the released code."""
        stds = [math.sqrt(score) for score in scores]
        largest = max(stds, default=0.0)
        kept = [index for index, std in enumerate(stds) if std >= self.share * largest]
        return keep(scores, rank(scores, kept))
