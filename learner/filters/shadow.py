"""Bias report of a streaming filter: the batch rule runs in its shadow on the same groups, and the two are compared.

Counts groups at three gates, by task kind, duration and lag: offered, kept by the batch rule, kept by the stream.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learner.filters.selection import GroupFilter, Selection

GATES = ("offered", "batch_rule", "stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What the report tells groups apart by."""

    kind: str
    duration: str
    """Name of the bucket."""
    lag: int
    """Training steps behind, of the oldest token."""

    @property
    def buckets(self) -> tuple[str, ...]:
        """Names under which the group is counted."""
        return (f"kind/{self.kind or 'unnamed'}", f"duration/{self.duration}", f"lag/{self.lag}")


@dataclass(slots=True)
class ShadowReport:
    """Sums since the start of the run, in the history of the surviving weights."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: {gate: Counter[str]() for gate in GATES})
    """Groups per gate and bucket."""
    groups: Counter[str] = field(default_factory=Counter[str])
    """Groups per gate, and `both`: kept by both."""
    mass: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GATES, 0.0))
    """Summed score per gate."""

    def observe(self, facts: Sequence[GroupFacts], streamed: Selection, batch_rule: GroupFilter) -> None:
        """Count one batch."""
        by_batch = batch_rule.select(streamed.scores)
        kept = {"offered": set(range(len(facts))), "batch_rule": set(by_batch.kept), "stream": set(streamed.kept)}
        self.groups["both"] += len(kept["batch_rule"] & kept["stream"])
        for gate, indices in kept.items():
            self.groups[gate] += len(indices)
            self.mass[gate] = math.fsum((self.mass[gate], *(streamed.scores[index] for index in indices)))
            for index in indices:
                self.counts[gate].update(facts[index].buckets)

    @property
    def disagreement_rate(self) -> float:
        """Share of groups on which the two rules differ."""
        differing = self.groups["batch_rule"] + self.groups["stream"] - 2 * self.groups["both"]
        return _share(differing, self.groups["offered"])

    @property
    def dropped_share(self) -> float:
        """Share of what the batch rule keeps that the stream drops; above 0.05 it must not be the default."""
        return _share(self.groups["batch_rule"] - self.groups["both"], self.groups["batch_rule"])

    def measures(self) -> dict[str, float]:
        """The report by metric name; `kept_share` is of what was offered in a bucket."""
        measures = {
            "learner/snr_shadow/disagreement_rate": self.disagreement_rate,
            "learner/snr_shadow/dropped_share": self.dropped_share,
        }
        for gate in GATES[1:]:
            measures[f"learner/snr_shadow/{gate}/kept_mass"] = _share(self.mass[gate], self.mass["offered"])
            for name, offered in self.counts["offered"].items():
                measures[f"learner/snr_shadow/{gate}/kept_share/{name}"] = self.counts[gate][name] / offered
        return measures

    def to_state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""
        counts = {gate: dict(counts) for gate, counts in self.counts.items()}
        return {"counts": counts, "groups": dict(self.groups), "mass": dict(self.mass)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ShadowReport:
        """Read from a checkpoint."""
        return cls(
            counts={gate: Counter(state["counts"][gate]) for gate in GATES},
            groups=Counter(state["groups"]),
            mass={gate: float(state["mass"][gate]) for gate in GATES},
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
