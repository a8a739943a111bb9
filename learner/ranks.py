"""Who computes which rows: one process, or the ranks of a process group (`learner.distributed`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """How a training step's forward and backward passes are shared. Every rank calls the same methods in one order."""

    @property
    def is_leader(self) -> bool:
        """Whether this rank owns ledger, sockets and files."""
        ...

    def share(self, costs: Sequence[int]) -> list[int]:
        """Which of the pieces of these costs this rank computes; each belongs to one rank, some may get none."""
        ...

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, equal to the bit everywhere."""
        ...


class Alone:
    """The only process."""

    @property
    def is_leader(self) -> bool:
        """Always."""
        return True

    def share(self, costs: Sequence[int]) -> list[int]:
        """All pieces, in order."""
        return list(range(len(costs)))

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""


ALONE = Alone()
