"""How many episodes and calls there may be at once, in all and per client.

Invariant: every admission is taken back exactly once: by `dismiss` for an episode, by `end_call` for a call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import NoReturn

from env_server.rates import Rates
from env_server.refusals import RefusedError
from longturn.metrics import Metrics

RETRY_S = 1.0
DRAIN_RETRY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """See EnvServerConfig for the meaning of each."""

    max_episodes: int
    max_episodes_per_client: int
    max_requests_in_flight: int
    max_rate_per_client: float = 0.0


class Admission:
    """Counts episodes that are alive and calls that are not answered yet."""

    def __init__(self, limits: Limits) -> None:
        self.is_draining = False
        self.num_in_flight = 0
        """Starts and steps that are not answered yet."""
        self._limits = limits
        self._rates = Rates(limits.max_rate_per_client)
        self._num_live = 0
        self._live_by_client: Counter[str] = Counter()
        self._drained: asyncio.Event | None = None

    def admit(self, client_id: str) -> None:
        """Count one more live episode and one more call in flight; RefusedError where a limit forbids it."""
        self._check_call()
        limits = self._limits
        if self._num_live >= limits.max_episodes:
            raise _too_many("TOO_MANY_EPISODES", "max_episodes", limits.max_episodes, "episodes are alive")
        per_client = limits.max_episodes_per_client
        if per_client and self._live_by_client[client_id] >= per_client:
            raise _too_many("TOO_MANY_EPISODES", "max_episodes_per_client", per_client, "episodes of this client")
        self._rates.take(client_id)
        self.num_in_flight += 1
        self.restore(client_id)

    def restore(self, client_id: str) -> None:
        """Count an episode that was alive before this server started, whatever the limits say."""
        self._num_live += 1
        self._live_by_client[client_id] += 1

    def dismiss(self, client_id: str) -> None:
        """An episode is alive no longer: its start failed, or it has ended."""
        self._num_live -= 1
        self._live_by_client[client_id] -= 1
        if not self._live_by_client[client_id]:
            del self._live_by_client[client_id]

    def begin_call(self, client_id: str) -> None:
        """Count one more call in flight; RefusedError where a limit forbids it."""
        self._check_call()
        self._rates.take(client_id)
        self.num_in_flight += 1

    def end_call(self) -> None:
        """A start or step is answered."""
        self.num_in_flight -= 1
        if self._drained is not None and not self.num_in_flight:
            self._drained.set()

    async def drain(self) -> None:
        """Refuse new steps and starts, and wait until those in flight are done."""
        self.is_draining = True
        if self.num_in_flight:
            self._drained = asyncio.Event()
            await self._drained.wait()

    def publish(self, metrics: Metrics) -> None:
        """Write the gauges, and forget the rates of clients that have been quiet."""
        self._rates.forget_idle()
        metrics.gauge("server/episode/num_live", self._num_live)
        metrics.gauge("server/call/num_in_flight", self.num_in_flight)
        metrics.gauge("server/client/num_live", len(self._live_by_client))

    def _check_call(self) -> None:
        if self.is_draining or self.num_in_flight >= self._limits.max_requests_in_flight:
            self._refuse_call()

    def _refuse_call(self) -> NoReturn:
        if self.is_draining:
            raise RefusedError(
                "SHUTTING_DOWN", "the server shuts down; try another, or this one later", retry_after_s=DRAIN_RETRY_S
            )
        limit = self._limits.max_requests_in_flight
        raise _too_many("TOO_MANY_REQUESTS", "max_requests_in_flight", limit, "calls in flight")


def _too_many(reason: str, setting: str, limit: int, what: str) -> RefusedError:
    return RefusedError(
        reason,
        f"{limit} {what}: the limit env_server.{setting} is reached",
        retry_after_s=RETRY_S,
        setting=f"env_server.{setting}",
    )
