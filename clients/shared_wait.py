"""Many tasks that wait for the same peer, shown on the status board as one wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from longturn.status import StatusBoard


class SharedWait:
    """Shows one wait while at least one task is inside `waiting`."""

    def __init__(self, board: StatusBoard | None, peer: str, *, budget_s: float) -> None:
        self._board = board
        self._peer = peer
        self._budget_s = budget_s
        self._num_inside = 0
        self._stack = ExitStack()

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Be one of those who wait; the first one's reason is shown."""
        if self._num_inside == 0 and self._board is not None:
            self._stack.enter_context(self._board.waiting(self._peer, reason, budget_s=self._budget_s))
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._stack.close()
