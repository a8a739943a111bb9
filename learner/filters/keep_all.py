"""No filter: every group is trained, those without variance too."""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.filters.selection import Selection, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAll:
    def select(self, scores: Sequence[float]) -> Selection:
        """Keep all, in the order given."""
        kept = tuple(range(len(scores)))
        return Selection(scores=tuple(scores), verdicts=(Verdict.KEPT,) * len(kept), kept=kept)
