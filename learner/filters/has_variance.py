"""Keeps every group whose members did not all score alike: DAPO's dynamic sampling (its refill: `learner.refill`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, keep, rank
from learner.filters.variance_mass import ZERO_VARIANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class HasVariance:
    success_reward: float = 1.0
    """What the environment gives for success: less variance than 1e-8 of its square is rounding."""

    def select(self, scores: Sequence[float]) -> Selection:
        """Keep all scores that are not rounding."""
        zero = ZERO_VARIANCE * self.success_reward**2
        return keep(scores, rank(scores, [index for index, score in enumerate(scores) if score > zero]), zero=zero)
