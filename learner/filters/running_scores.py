"""Scores of past groups with weights that fade: what a filter knows before the batch is complete."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_LEAST_WEIGHT = 1e-3


@dataclass(slots=True, kw_only=True)
class RunningScores:
    """Mutable; its state goes into the checkpoint. Weights fade per training step, and faded ones are forgotten."""

    entries: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """(score, weight), oldest first."""

    def add(self, score: float) -> None:
        """One more group, at full weight."""
        self.entries.append((score, 1.0))

    def fade(self, decay: float) -> None:
        """One training step passed: every weight keeps the share `decay`."""
        faded = ((score, weight * decay) for score, weight in self.entries)
        self.entries = [(score, weight) for score, weight in faded if weight >= _LEAST_WEIGHT]

    def per_group(self, num_groups: int) -> list[tuple[float, float]]:
        """(score, weight) with weights that sum to `num_groups`; nothing while nothing was seen."""
        total = math.fsum(weight for _, weight in self.entries)
        return [(score, weight * num_groups / total) for score, weight in self.entries]

    def to_state(self) -> list[list[float]]:
        """JSON for the checkpoint."""
        return [list(entry) for entry in self.entries]

    @classmethod
    def from_state(cls, state: Sequence[Sequence[float]]) -> RunningScores:
        """Read from a checkpoint."""
        return cls(entries=[(float(score), float(weight)) for score, weight in state])
