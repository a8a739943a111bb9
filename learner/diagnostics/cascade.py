"""Exploration-exploitation cascade (EPO's failure mode) as two alarms over a run.

`explore`: early-turn entropy above 1.5 times the median of its first ten measurements while success stays inside the 95
% Wilson interval of the success pooled over those ten. `propagate`, only after that: late-turn entropy above the same
limit, or the oscillation of the step entropy above twice the median of its first ten values. Each needs three
measurements in a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from learner.diagnostics.baseline import FirstMedian, InARow
from longturn.intervals import wilson

_WINDOW = 10
_ENTROPY_FACTOR = 1.5
_OSCILLATION_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeMeasurement:
    """Mean entropies in nats: first third of turns, last third, all tokens; and the panel's success."""

    early_entropy: float
    late_entropy: float
    step_entropy: float
    success: float
    num_episodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeReading:
    oscillation: float | None
    """Absent until ten step entropies are known."""
    explore_alarm: bool
    propagate_alarm: bool


@dataclass(slots=True)
class CascadeTracker:
    """References and counters over a run; its state goes into the checkpoint."""

    early: FirstMedian = field(default_factory=FirstMedian)
    oscillation: FirstMedian = field(default_factory=FirstMedian)
    step_entropies: list[float] = field(default_factory=list[float])
    pooled_success: float = 0.0
    pooled_episodes: int = 0
    has_explored: bool = False
    explore: InARow = field(default_factory=InARow)
    propagate: InARow = field(default_factory=InARow)

    def observe(self, measurement: CascadeMeasurement) -> CascadeReading:
        """Take one measurement in; nothing fires before the references are settled."""
        was_settled, had_explored = self.early.is_settled, self.has_explored
        self.step_entropies = [*self.step_entropies, measurement.step_entropy][-_WINDOW:]
        oscillation = detrended_std(self.step_entropies) if len(self.step_entropies) == _WINDOW else None
        if oscillation is not None:
            self.oscillation.add(oscillation)
        if not was_settled:
            self._extend_references(measurement)
        explores = self.explore.observe(was_settled and self._explores(measurement))
        self.has_explored = had_explored or explores
        propagates = self.propagate.observe(had_explored and self._propagates(measurement, oscillation))
        return CascadeReading(oscillation=oscillation, explore_alarm=explores, propagate_alarm=propagates)

    def success_interval(self) -> tuple[float, float]:
        """Interval of the success pooled over the first ten measurements."""
        return wilson(self.pooled_success, self.pooled_episodes)

    def to_state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""
        return {
            "early": self.early.to_state(),
            "oscillation": self.oscillation.to_state(),
            "step_entropies": list(self.step_entropies),
            "pooled": [self.pooled_success, self.pooled_episodes],
            "has_explored": self.has_explored,
            "in_a_row": [self.explore.count, self.propagate.count],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "CascadeTracker":
        success, episodes = state["pooled"]
        explore, propagate = state["in_a_row"]
        return cls(
            early=FirstMedian.from_state(state["early"]),
            oscillation=FirstMedian.from_state(state["oscillation"]),
            step_entropies=[float(value) for value in state["step_entropies"]],
            pooled_success=float(success),
            pooled_episodes=int(episodes),
            has_explored=bool(state["has_explored"]),
            explore=InARow(count=int(explore)),
            propagate=InARow(count=int(propagate)),
        )

    def _extend_references(self, measurement: CascadeMeasurement) -> None:
        self.early.add(measurement.early_entropy)
        self.pooled_success += measurement.success * measurement.num_episodes
        self.pooled_episodes += measurement.num_episodes

    def _limit(self) -> float:
        return _ENTROPY_FACTOR * (self.early.value or 0.0)

    def _explores(self, measurement: CascadeMeasurement) -> bool:
        low, high = self.success_interval()
        return measurement.early_entropy > self._limit() and low <= measurement.success <= high

    def _propagates(self, measurement: CascadeMeasurement, oscillation: float | None) -> bool:
        reference = self.oscillation.value if self.oscillation.is_settled else None
        swings = oscillation is not None and reference is not None and oscillation > _OSCILLATION_FACTOR * reference
        return swings or measurement.late_entropy > self._limit()


def detrended_std(values: Sequence[float]) -> float:
    """Population standard deviation of the residual of a straight-line fit."""
    size = len(values)
    times = [index - (size - 1) / 2 for index in range(size)]
    mean = fmean(values)
    slope = math.fsum(t * v for t, v in zip(times, values, strict=True)) / math.fsum(t * t for t in times)
    return math.sqrt(math.fsum((v - mean - slope * t) ** 2 for t, v in zip(times, values, strict=True)) / size)
