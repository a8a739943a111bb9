"""The seam between the scheduler and whatever computes logits.

A backend owns the weights and one key-value memory of `num_slots` slots, each holding up to `slot_tokens` positions of
one sequence. Which tokens lie in which slot is the slot table's knowledge (slots.py), not the backend's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(slots=True, kw_only=True)
class Segment:
    """Consecutive new tokens of one sequence, computed in one pass."""

    slot: int
    start: int
    """Position of the first new token = number of positions already in the slot."""
    token_ids: Sequence[int]
    num_logits: int
    """How many of the last new tokens want logits; 0 for a prompt chunk that is not the last."""


@dataclass(slots=True, kw_only=True)
class StepInput:
    """One forward pass: single-token rows, and longer segments. Rows are sorted by slot; a slot occurs once."""

    row_slots: Sequence[int]
    row_positions: Sequence[int]
    row_tokens: Sequence[int]
    segments: Sequence[Segment] = field(default_factory=tuple)


class Backend(Protocol):
    """What the scheduler needs from a model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def can_rewind(self) -> bool:
        """Whether a slot may be continued from, or copied up to, an earlier position than its last."""
        ...

    def forward(self, step: StepInput) -> Tensor:
        """Float32 logits [rows + sum(num_logits), vocab]: one per row, then those of each segment in order.

        Positions below the start of a row or segment must be in its slot; the new ones are there afterwards.
        """
        ...

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Make the first `num_tokens` positions of `target` equal to those of `source`."""
        ...

    def clear_slot(self, slot: int) -> None:
        """Forget a slot, so that a non-finite value in it cannot reach its next owner."""
        ...

    def verify(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise `WeightsError` unless these are exactly the model's parameters. Changes nothing."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy verified tensors into the parameters in place, dtype converted."""
        ...
