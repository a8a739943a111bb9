"""Keeps a fixed number of groups, best first, or the floor of a share. Groups without variance take part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, keep, rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    num_groups: int | None = None
    """How many to keep; when absent, `share` decides."""
    share: float = 0.25
    """Share of groups to keep, rounded down but at least one."""

    def __post_init__(self) -> None:
        if self.num_groups is not None and self.num_groups < 1:
            raise ValueError(f"num_groups must be >= 1, got {self.num_groups}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")

    def select(self, scores: Sequence[float]) -> Selection:
        """Keep the best ones."""
        size = self.num_groups or max(1, math.floor(self.share * len(scores) + 1e-9))
        return keep(scores, rank(scores, range(len(scores)))[:size])
