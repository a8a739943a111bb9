"""SNR-aware filter: the shortest list of groups that holds a share of the batch's reward variance (RAGEN-2, 3.3).

Groups without variance go first. The rest are ranked by variance, and the shortest prefix that reaches `mass * total -
epsilon` is kept. When that threshold is not positive the batch as a whole holds too little signal and nothing is kept.
`mass` >= 1 keeps every group that has variance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, Verdict, rank

ZERO_VARIANCE = 1e-8
"""Variances up to this, in units of the success reward squared, are none."""
# Sums of equal variances differ in the last place; the prefix must not grow by a group because of that.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceMass:
    mass: float = 0.9
    """Share of the total variance to keep."""
    success_reward: float = 1.0
    """s: what the environment gives for success; sets the unit of the two thresholds, s^2."""
    epsilon: float = 0.01
    """Least signal of a batch, in units of s^2."""
    include_zero: bool = False
    """True ranks groups without variance too (the paper's plain form)."""

    def __post_init__(self) -> None:
        if self.mass <= 0 or self.success_reward <= 0 or self.epsilon < 0:
            raise ValueError("mass and success_reward must be > 0 and epsilon >= 0")

    def select(self, scores: Sequence[float]) -> Selection:
        """Verdict on every group; scores are variances."""
        candidates = [index for index, score in enumerate(scores) if self.is_candidate(score)]
        kept = self._prefix(scores, rank(scores, candidates))
        rest = Verdict.OUTRANKED if kept else Verdict.WEAK_BATCH
        verdicts = [rest if index in set(candidates) else Verdict.ZERO_VARIANCE for index in range(len(scores))]
        for index in kept:
            verdicts[index] = Verdict.KEPT
        return Selection(scores=tuple(scores), verdicts=tuple(verdicts), kept=tuple(kept))

    def is_candidate(self, score: float) -> bool:
        """Whether a group has the variance to be ranked at all."""
        return self.include_zero or score > ZERO_VARIANCE * self.success_reward**2

    def judge(self, score: float, others: Sequence[tuple[float, float]]) -> Verdict:
        """Verdict on one group among others that are known as (score, weight) only; among equals it comes first.

        A group belongs to the shortest prefix iff the groups above it do not reach the threshold without it.
        """
        if not self.is_candidate(score):
            return Verdict.ZERO_VARIANCE
        ranked = [(other, weight) for other, weight in others if self.is_candidate(other)]
        threshold = self._threshold(math.fsum((score, *(other * weight for other, weight in ranked))))
        if self.mass < 1 and threshold <= 0:
            return Verdict.WEAK_BATCH
        above = math.fsum(other * weight for other, weight in ranked if other > score)
        return Verdict.KEPT if self.mass >= 1 or above < threshold else Verdict.OUTRANKED

    def _prefix(self, scores: Sequence[float], ranked: list[int]) -> list[int]:
        if self.mass >= 1:
            return ranked
        total = math.fsum(scores[index] for index in ranked)
        threshold = self._threshold(total)
        if threshold <= 0:
            return []
        for length in range(1, len(ranked) + 1):
            if math.fsum(scores[index] for index in ranked[:length]) >= threshold - _ROUNDING * total:
                return ranked[:length]
        return ranked

    def _threshold(self, total: float) -> float:
        return self.mass * total - self.epsilon * self.success_reward**2
