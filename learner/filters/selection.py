"""What a filter rule is given and what it answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Verdict(StrEnum):
    """Why a group is trained or not; each group gets exactly one."""

    KEPT = "kept"
    ZERO_VARIANCE = "zero_variance"
    """All members scored alike: nothing to learn from comparison."""
    OUTRANKED = "outranked"
    """It has signal, but the better groups already hold the wanted share."""
    WEAK_BATCH = "weak_batch"
    """The whole batch holds too little signal; no group of it is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Result for one batch; lists are in the order the groups were given, `kept` is best first."""

    scores: tuple[float, ...]
    verdicts: tuple[Verdict, ...]
    kept: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        return not self.kept

    @property
    def kept_ratio(self) -> float:
        """Kept groups over groups; 0 for an empty batch."""
        return len(self.kept) / len(self.scores) if self.scores else 0.0

    @property
    def kept_mass(self) -> float:
        """Share of the batch's summed score that the kept groups hold; 0 when there is none."""
        total = math.fsum(self.scores)
        return math.fsum(self.scores[index] for index in self.kept) / total if total > 0 else 0.0


class GroupFilter(Protocol):
    """A rule over the scores of one batch's groups."""

    def select(self, scores: Sequence[float]) -> Selection: ...


def rank(scores: Sequence[float], candidates: Sequence[int]) -> list[int]:
    """Candidates by falling score; ties keep the order given, so a permutation of groups permutes the result."""
    return sorted(candidates, key=lambda index: -scores[index])


def keep(scores: Sequence[float], kept: Sequence[int], *, zero: float = 0.0) -> Selection:
    """Selection of a rule whose only reason is rank: groups with no more variance than `zero` are named, the rest is
    outranked.
    """
    verdicts = [Verdict.OUTRANKED if score > zero else Verdict.ZERO_VARIANCE for score in scores]
    for index in kept:
        verdicts[index] = Verdict.KEPT
    if not kept:
        verdicts = [Verdict.WEAK_BATCH if verdict is Verdict.OUTRANKED else verdict for verdict in verdicts]
    return Selection(scores=tuple(scores), verdicts=tuple(verdicts), kept=tuple(kept))
