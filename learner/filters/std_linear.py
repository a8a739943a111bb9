"""RAGEN's released rule `top_p linear`: a share of the summed standard deviation. Scores are variances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, keep, rank

_ZERO = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class StdLinear:
    mass: float = 0.9
    """Share of the summed standard deviation to reach; >= 1 keeps every candidate."""
    epsilon: float = 0.01
    """Taken off the threshold, in units of the return."""
    include_zero: bool = False
    """True lets groups without variance take part."""
    smallest_first: bool = False
    """True keeps the weakest groups that reach the threshold: the ablation that shows the ranking matters."""

    def __post_init__(self) -> None:
        if self.mass <= 0 or self.epsilon < 0:
            raise ValueError("mass must be > 0 and epsilon >= 0")

    def select(self, scores: Sequence[float]) -> Selection:
        """Shortest prefix that reaches the threshold; nothing if a score of 0 comes first."""
        stds = [math.sqrt(score) for score in scores]
        candidates = [index for index, std in enumerate(stds) if self.include_zero or std > _ZERO]
        ranked = (
            sorted(candidates, key=lambda index: scores[index]) if self.smallest_first else rank(scores, candidates)
        )
        if self.mass >= 1:
            return keep(scores, ranked)
        threshold = self.mass * math.fsum(stds[index] for index in ranked) - self.epsilon
        if threshold <= 0:
            return keep(scores, [])
        for length in range(1, len(ranked) + 1):
            if stds[ranked[length - 1]] <= 0:
                break
            if math.fsum(stds[index] for index in ranked[:length]) >= threshold:
                return keep(scores, ranked[:length])
        return keep(scores, [])
