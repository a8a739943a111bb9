"""How old the data of a training step is, counted in training steps.

Policy versions are never reused, so after a resume they run ahead of training steps: the caller maps a span's version
to the training step it came from (the ledger's map) before it asks here.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """`num_tokens` completion tokens sampled by the weights of one training step."""

    training_step: int
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ValueError(f"a span holds at least one token, got {self.num_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    head: int
    """Lag of the oldest token; what admission bounds."""
    tail: int
    """Lag of the newest token."""
    token_weighted: float
    """Mean lag over tokens."""


def lag(spans: Sequence[StepSpan], current_step: int) -> Lag:
    """Lag of a trajectory (or of a batch, with all its spans) behind `current_step`."""
    if not spans:
        raise ValueError("a trajectory without tokens has no lag")
    steps = [span.training_step for span in spans]
    if max(steps) > current_step:
        raise ValueError(f"tokens of training step {max(steps)} cannot be trained at step {current_step}")
    num_tokens = sum(span.num_tokens for span in spans)
    weighted = sum((current_step - span.training_step) * span.num_tokens for span in spans)
    return Lag(head=current_step - min(steps), tail=current_step - max(steps), token_weighted=weighted / num_tokens)
