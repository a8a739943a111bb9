"""Keeps a share of the groups, best first: one article's reading of top-p. Groups without variance take part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, keep, rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Fraction:
    share: float = 0.9
    """Share of groups to keep, rounded up."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")

    def select(self, scores: Sequence[float]) -> Selection:
        """Keep ceil(share * groups)."""
        # The small step back keeps 0.1 * 30 = 3.0000000000000004 at three.
        size = math.ceil(self.share * len(scores) - 1e-9)
        return keep(scores, rank(scores, range(len(scores)))[:size])
