"""The four reasoning regimes of RAGEN-2 as a rule with hysteresis; the thresholds are this project's.

a = (accuracy - chance) / (1 - chance), clipped to [0, 1]. High information: a >= max(0.2, 0.5 * a_ref). High entropy:
H(Z|X) per token >= 0.5 * H_ref. The references are medians of the first ten measurements. While H_ref is below 0.02
nats per token nothing can be said. An alarm needs three measurements in a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from learner.diagnostics.baseline import FirstMedian, InARow

_LEAST_REFERENCE_ENTROPY = 0.02


class Regime(StrEnum):
    DIVERSE = "diverse"
    TEMPLATE_COLLAPSE = "template_collapse"
    COMPRESSED = "compressed"
    LOW_ENTROPY_COLLAPSE = "low_entropy_collapse"
    UNDETERMINED = "undetermined"


_COLLAPSED = frozenset({Regime.TEMPLATE_COLLAPSE, Regime.LOW_ENTROPY_COLLAPSE})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeReading:
    regime: Regime
    alarm: Regime | None
    """The collapsed regime that the last three measurements agree on."""
    normalised_accuracy: float
    is_provisional: bool
    """The references still move; no alarm is raised."""


def normalised_accuracy(accuracy: float, chance: float) -> float:
    """Retrieval accuracy rescaled so that chance is 0; 0 where chance is 1 (one prompt, or all equal)."""
    if chance >= 1:
        return 0.0
    return min(1.0, max(0.0, (accuracy - chance) / (1 - chance)))


def classify(accuracy: float, h_z_given_x: float, *, accuracy_reference: float, entropy_reference: float) -> Regime:
    """Regime of one measurement; `accuracy` is normalised, entropies are in nats per token."""
    if entropy_reference < _LEAST_REFERENCE_ENTROPY:
        return Regime.UNDETERMINED
    is_informed = accuracy >= max(0.2, 0.5 * accuracy_reference)
    if h_z_given_x >= 0.5 * entropy_reference:
        return Regime.DIVERSE if is_informed else Regime.TEMPLATE_COLLAPSE
    return Regime.COMPRESSED if is_informed else Regime.LOW_ENTROPY_COLLAPSE


@dataclass(slots=True)
class RegimeTracker:
    """References and hysteresis over a run; its state goes into the checkpoint."""

    accuracy_reference: FirstMedian = field(default_factory=FirstMedian)
    entropy_reference: FirstMedian = field(default_factory=FirstMedian)
    last_collapse: Regime | None = None
    in_a_row: InARow = field(default_factory=InARow)

    def observe(self, *, retrieval_accuracy: float, chance: float, h_z_given_x: float) -> RegimeReading:
        """Classify one measurement; `h_z_given_x` is in nats per token."""
        accuracy = normalised_accuracy(retrieval_accuracy, chance)
        self.accuracy_reference.add(accuracy)
        self.entropy_reference.add(h_z_given_x)
        regime = classify(
            accuracy,
            h_z_given_x,
            accuracy_reference=self.accuracy_reference.value or 0.0,
            entropy_reference=self.entropy_reference.value or 0.0,
        )
        is_provisional = not self.accuracy_reference.is_settled
        return RegimeReading(
            regime=regime,
            alarm=self._alarm(regime, is_provisional=is_provisional),
            normalised_accuracy=accuracy,
            is_provisional=is_provisional,
        )

    def _alarm(self, regime: Regime, *, is_provisional: bool) -> Regime | None:
        collapse = regime if regime in _COLLAPSED and not is_provisional else None
        if collapse is not self.last_collapse:
            self.in_a_row.observe(False)
        self.last_collapse = collapse
        return collapse if self.in_a_row.observe(collapse is not None) else None

    def to_state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""
        return {
            "accuracy_reference": self.accuracy_reference.to_state(),
            "entropy_reference": self.entropy_reference.to_state(),
            "last_collapse": self.last_collapse,
            "in_a_row": self.in_a_row.count,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "RegimeTracker":
        last = state["last_collapse"]
        return cls(
            accuracy_reference=FirstMedian.from_state(state["accuracy_reference"]),
            entropy_reference=FirstMedian.from_state(state["entropy_reference"]),
            last_collapse=None if last is None else Regime(last),
            in_a_row=InARow(count=int(state["in_a_row"])),
        )
