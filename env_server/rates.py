"""How many calls per second each client may make.

Invariant: over any time a client gets at most its rate times that time, plus what one second brings. Who is refused is
told a time of its own to come back, one after the other, so that those who wait do not all come at once.
"""

from __future__ import annotations

import time

from env_server.refusals import RefusedError

BURST_S = 1.0
"""What a client did not use for so long it may use at once."""
LONGEST_RETRY_S = 30.0


class _Client:
    """When a client's calls would all be done at its rate, and the last time that was given to a refused one."""

    __slots__ = ("done_at_s", "told_at_s")

    def __init__(self) -> None:
        self.done_at_s = self.told_at_s = 0.0


class Rates:
    """Counts the calls of each client against one rate."""

    def __init__(self, max_rate: float) -> None:
        """`max_rate` in calls per second; 0: no limit."""
        self._max_rate = max_rate
        self._interval_s = 1.0 / max_rate if max_rate else 0.0
        self._clients: dict[str, _Client] = {}

    def take(self, client_id: str) -> None:
        """Count a call; RefusedError(RATE_LIMITED) if the client is too fast."""
        if not self._interval_s:
            return
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client()
        now_s = time.monotonic()
        done_at_s = max(client.done_at_s, now_s) + self._interval_s
        too_early_s = done_at_s - now_s - max(BURST_S, self._interval_s)
        if too_early_s > 1e-9:
            raise self._refusal(client, now_s, too_early_s)
        client.done_at_s = done_at_s

    def forget_idle(self) -> None:
        """Drop what no longer matters of clients that have been quiet."""
        now_s = time.monotonic()
        idle = [name for name, client in self._clients.items() if max(client.done_at_s, client.told_at_s) < now_s]
        for client_id in idle:
            del self._clients[client_id]

    def _refusal(self, client: _Client, now_s: float, too_early_s: float) -> RefusedError:
        told_at_s = max(now_s + too_early_s, client.told_at_s + self._interval_s)
        client.told_at_s = min(told_at_s, now_s + max(LONGEST_RETRY_S, self._interval_s))
        return RefusedError(
            "RATE_LIMITED",
            f"more than {self._max_rate:g} starts and steps a second: the limit env_server.max_rate_per_client is"
            " reached",
            retry_after_s=client.told_at_s - now_s,
            setting="env_server.max_rate_per_client",
        )
