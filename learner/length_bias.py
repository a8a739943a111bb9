"""Length-bias meter: do long or hard tasks reach the update as often as they were offered?

Counts groups by task kind and by duration (powers of two of seconds) at three gates: offered (issued for a consumed
batch, failed ones included), entered (complete in the batch), trained (kept by the filter). The filter changes shares
by design, so entered against offered is the measure of bias and trained is shown apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from learner.ledger.records import TakenBatch

GATES = ("offered", "entered", "trained")


def duration_bucket(duration_s: float) -> str:
    """Name of the bucket: the power of two, in seconds, below which the duration lies."""
    return f"below_{2 ** max(0, math.ceil(math.log2(max(duration_s, 1e-9)))):d}_s"


@dataclass(slots=True)
class LengthBiasMeter:
    """Counts since the start of the run, in the history of the surviving weights."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: {gate: Counter[str]() for gate in GATES})

    def observe(self, taken: TakenBatch, kept: Sequence[int]) -> None:
        """Count a consumed batch; `kept` are positions among its groups."""
        for lost in taken.lost:
            self._count("offered", lost.kind, lost.duration_s)
        for position, group in enumerate(taken.groups):
            for gate in GATES if position in set(kept) else GATES[:2]:
                self._count(gate, group.kind, group.duration_s)

    def _count(self, gate: str, kind: str, duration_s: float) -> None:
        self.counts[gate][f"kind/{kind or 'unnamed'}"] += 1
        self.counts[gate][f"duration/{duration_bucket(duration_s)}"] += 1

    def shares(self) -> dict[str, float]:
        """Share of each kind and duration at each gate, by metric name."""
        shares: dict[str, float] = {}
        for gate, counts in self.counts.items():
            for family in ("kind", "duration"):
                chosen = {name: count for name, count in counts.items() if name.startswith(family)}
                total = sum(chosen.values())
                for name, count in chosen.items():
                    shares[f"learner/length_bias/{gate}_share/{name}"] = count / total
        return shares

    def to_state(self) -> dict[str, dict[str, int]]:
        """JSON for the checkpoint."""
        return {gate: dict(counts) for gate, counts in self.counts.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Mapping[str, int]]) -> LengthBiasMeter:
        """Read from a checkpoint."""
        return cls(counts={gate: Counter(state[gate]) for gate in GATES})
