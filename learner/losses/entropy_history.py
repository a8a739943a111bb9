"""History of step entropies that EPO's corridor is built on.

One entry per training step: the token-mean entropy of the proximal policy over the unfiltered pool, appended after the
update. The reference of a step therefore never contains the step itself. Skipped batches append nothing. Memory does
not grow with the number of steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """How past step entropies become one reference, in nats per token.

    The paper (arXiv 2509.22576 v2) takes the plain mean; the others forget. ValueError for an unknown kind, a window
    below 1 or a decay outside [0, 1).
    """

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
    """Immutable; `appended` gives the next one. All three means are kept, so that a resumed run may change its kind."""

    options: HistoryOptions = field(default_factory=HistoryOptions)
    num_steps: int = 0
    total: float = 0.0
    recent: tuple[float, ...] = ()
    """The last `window` entries."""
    exponential_mean: float = 0.0

    @property
    def reference(self) -> float | None:
        """Reference entropy in nats, absent while there is no earlier step."""
        if not self.num_steps:
            return None
        if self.options.kind == "ema":
            return self.exponential_mean
        if self.options.kind == "sliding":
            return math.fsum(self.recent) / len(self.recent)
        return self.total / self.num_steps

    def appended(self, mean_entropy: float) -> "EntropyHistory":
        """The history with one more step; raises ValueError unless the entropy is finite and not negative."""
        if not (math.isfinite(mean_entropy) and mean_entropy >= 0):
            raise ValueError(f"a step entropy must be finite and >= 0, got {mean_entropy}")
        decay = self.options.decay if self.num_steps else 0.0
        return replace(
            self,
            num_steps=self.num_steps + 1,
            total=self.total + mean_entropy,
            recent=(*self.recent, mean_entropy)[-self.options.window :],
            exponential_mean=decay * self.exponential_mean + (1 - decay) * mean_entropy,
        )

    def to_state(self) -> dict[str, Any]:
        """JSON for the checkpoint; the options belong to the configuration."""
        return {
            "num_steps": self.num_steps,
            "total": self.total,
            "recent": list(self.recent),
            "exponential_mean": self.exponential_mean,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], options: HistoryOptions) -> "EntropyHistory":
        """Read from a checkpoint."""
        return cls(
            options=options,
            num_steps=int(state["num_steps"]),
            total=float(state["total"]),
            recent=tuple(float(entry) for entry in state["recent"])[-options.window :],
            exponential_mean=float(state["exponential_mean"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEntropyHistory:
    """One history per turn index, ragged: a turn index takes an entry only from steps in which an episode got there."""

    options: HistoryOptions = field(default_factory=HistoryOptions)
    turns: tuple[EntropyHistory, ...] = ()

    @property
    def references(self) -> tuple[float | None, ...]:
        """Reference entropy of turn 0, 1, 2 ... in nats, absent where no earlier step had the turn."""
        return tuple(turn.reference for turn in self.turns)

    def appended(self, mean_entropies: Sequence[float | None]) -> "TurnEntropyHistory":
        """The histories with the mean entropy of turn 0, 1, 2 ... of one more step; absent ones change nothing."""
        fresh = EntropyHistory(options=self.options)
        turns = [*self.turns, *[fresh] * (len(mean_entropies) - len(self.turns))]
        for index, value in enumerate(mean_entropies):
            if value is not None:
                turns[index] = turns[index].appended(value)
        return replace(self, turns=tuple(turns))

    def to_state(self) -> list[dict[str, Any]]:
        """JSON for the checkpoint."""
        return [turn.to_state() for turn in self.turns]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, Any]], options: HistoryOptions) -> "TurnEntropyHistory":
        """Read from a checkpoint."""
        return cls(options=options, turns=tuple(EntropyHistory.from_state(turn, options) for turn in state))


def released_row(mean_entropies: Sequence[float | None], num_turns: int) -> tuple[float, ...]:
    """A step's row as EPO's released code appends it: shorter episodes are padded on the left with zeros.

    Turn t is then compared with another turn's history; kept for comparison with that code only.
    """
    row = tuple(value or 0.0 for value in mean_entropies)[-num_turns:]
    return (*(0.0,) * (num_turns - len(row)), *row)
