"""Keeps every group whose members did not all score alike: DAPO's dynamic sampling, here without refill."""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, keep, rank


@dataclass(frozen=True, slots=True, kw_only=True)
class HasVariance:
    def select(self, scores: Sequence[float]) -> Selection:
        """Keep all scores above 0; equal returns score exactly 0."""
        return keep(scores, rank(scores, [index for index, score in enumerate(scores) if score > 0]))
