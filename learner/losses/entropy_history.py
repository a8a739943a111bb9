"""History of step entropies that EPO's corridor is built on.

One entry per training step: the token-mean entropy of the proximal policy over the unfiltered pool, appended after the
update. The reference of a step therefore never contains the step itself. Skipped batches append nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    kind: str = "cumulative"
    """cumulative (plain mean of all earlier steps, the paper) | sliding | ema."""
    window: int = 10
    """Number of steps a sliding mean covers."""
    decay: float = 0.9
    """Share of the old value an exponential mean keeps per step."""

    def __post_init__(self) -> None:
        if self.kind not in ("cumulative", "sliding", "ema"):
            raise ValueError(f"history kind must be cumulative, sliding or ema, got {self.kind!r}")
        if self.window < 1:
            raise ValueError(f"history window must be >= 1, got {self.window}")
        if not 0 <= self.decay < 1:
            raise ValueError(f"history decay must be in [0, 1), got {self.decay}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyHistory:
    """Immutable; `appended` gives the next one."""

    options: HistoryOptions = field(default_factory=HistoryOptions)
    entries: tuple[float, ...] = ()

    @property
    def reference(self) -> float | None:
        """Reference entropy in nats, absent while there is no earlier step."""
        if not self.entries:
            return None
        if self.options.kind == "ema":
            return self._exponential_mean()
        entries = self.entries if self.options.kind == "cumulative" else self.entries[-self.options.window :]
        return math.fsum(entries) / len(entries)

    def appended(self, mean_entropy: float) -> "EntropyHistory":
        """The history with one more step; raises ValueError unless the entropy is finite and not negative."""
        if not (math.isfinite(mean_entropy) and mean_entropy >= 0):
            raise ValueError(f"a step entropy must be finite and >= 0, got {mean_entropy}")
        return replace(self, entries=(*self.entries, mean_entropy))

    def to_state(self) -> dict[str, list[float]]:
        """JSON for the checkpoint; the options belong to the configuration."""
        return {"entries": list(self.entries)}

    @classmethod
    def from_state(cls, state: Mapping[str, list[float]], options: HistoryOptions) -> "EntropyHistory":
        return cls(options=options, entries=tuple(float(entry) for entry in state["entries"]))

    def _exponential_mean(self) -> float:
        mean = self.entries[0]
        for entry in self.entries[1:]:
            mean = self.options.decay * mean + (1 - self.options.decay) * entry
        return mean
