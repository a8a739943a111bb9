"""Where the time of a training step goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Seconds per phase since the last `take`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's wall time under a name."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] += time.monotonic() - started_s

    def take(self) -> dict[str, float]:
        """What was counted, and start anew."""
        spent, self._spent = dict(self._spent), defaultdict(float)
        return spent
