"""RAGEN's released rule `top_p softmax`: the nucleus of a softmax over standard deviations. Scores are variances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, keep, rank

_ZERO = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class StdSoftmax:
    mass: float = 0.9
    """Probability to reach; >= 1 keeps every candidate."""
    include_zero: bool = True
    """True lets groups without variance take part."""

    def __post_init__(self) -> None:
        if self.mass <= 0:
            raise ValueError(f"mass must be > 0, got {self.mass}")

    def select(self, scores: Sequence[float]) -> Selection:
        """Shortest prefix that reaches the mass; at least one group if there is a candidate."""
        stds = [math.sqrt(score) for score in scores]
        ranked = rank(scores, [index for index, std in enumerate(stds) if self.include_zero or std > _ZERO])
        if self.mass >= 1 or not ranked:
            return keep(scores, ranked)
        weights = [math.exp(stds[index] - stds[ranked[0]]) for index in ranked]
        total, length = math.fsum(weights), 1
        while length < len(ranked) and math.fsum(weights[:length]) < self.mass * total:
            length += 1
        return keep(scores, ranked[:length])
