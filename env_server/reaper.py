"""Ends what nobody wants any more, and puts to sleep what nobody plays at the moment.

A sleeping episode holds no memory in a worker: its next step wakes it by replay. Episodes that cannot be replayed, and
those with a step in flight, stay awake.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from env_server.episode import Episode
from env_server.episode_table import EpisodeTable
from env_server.pool import WorkerPool
from longturn.metrics import Metrics
from longturn.records import EndCause

logger = logging.getLogger(__name__)

LONGEST_INTERVAL_S = 5.0
SHORTEST_INTERVAL_S = 0.05
SHARE_MADE_FREE = 0.05
"""Share of `max_awake` that goes to sleep at once where too many are awake: finding the idlest is a look at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """See EnvServerConfig for the meaning of each."""

    lease_s: float
    max_episode_s: float
    final_grace_s: float
    hibernate_idle_s: float
    max_awake: int


class Reaper:
    """Looks at all episodes of a table again and again."""

    def __init__(self, table: EpisodeTable, pool: WorkerPool, times: Times, *, metrics: Metrics) -> None:
        self._table, self._pool, self._times = table, pool, times
        self._metrics = metrics
        pool.before_place = self._make_room

    async def run_forever(self) -> None:
        """Reap and put to sleep until cancelled."""
        times = self._times
        waits_s = [times.lease_s, times.final_grace_s, times.hibernate_idle_s or times.lease_s]
        interval_s = min(LONGEST_INTERVAL_S, max(SHORTEST_INTERVAL_S, min(waits_s) / 4))
        while True:
            await asyncio.sleep(interval_s)
            now_s = time.monotonic()
            oldest_s = now_s
            for episode in list(self._table.episodes.values()):
                self._look_at(episode, now_s)
                if episode.action is not None:
                    oldest_s = min(oldest_s, episode.active_at_s)
            self._metrics.gauge("server/step/oldest_age_s", now_s - oldest_s)
            self._metrics.gauge("server/episode/num_awake", self._num_awake)
            self._table.publish()

    def _look_at(self, episode: Episode, now_s: float) -> None:
        times = self._times
        if episode.is_final:
            if now_s > episode.drop_at_s:
                self._table.drop(episode)
        elif episode.action is not None:
            return
        elif now_s - episode.born_at_s > times.max_episode_s:
            self._table.cut(episode, EndCause.MAX_EPISODE_TIME)
        elif now_s - episode.renewed_at_s > times.lease_s:
            fields = {"episode_id": episode.episode_id, "client_id": episode.request.client_id}
            logger.info("episode reaped", extra=fields)
            self._metrics.count("server/episode/num_reaped")
            self._table.cut(episode, EndCause.LEASE_EXPIRED)
        elif times.hibernate_idle_s and now_s - episode.active_at_s > times.hibernate_idle_s:
            self._hibernate(episode)

    @property
    def _num_awake(self) -> int:
        return sum(len(worker.keys) for worker in self._pool.workers)

    def _make_room(self) -> None:
        """Before one more episode goes to a worker: put the idlest to sleep where `max_awake` is reached."""
        max_awake = self._times.max_awake
        if not max_awake or self._num_awake < max_awake:
            return
        idle = [episode for episode in self._table.episodes.values() if _may_sleep(episode)]
        idle.sort(key=lambda episode: episode.active_at_s)
        num_surplus = self._num_awake - max_awake + max(1, int(max_awake * SHARE_MADE_FREE))
        for episode in idle[:num_surplus]:
            self._hibernate(episode)

    def _hibernate(self, episode: Episode) -> None:
        if _may_sleep(episode):
            self._metrics.count("server/episode/num_hibernated")
            self._table.put_to_sleep(episode)


def _may_sleep(episode: Episode) -> bool:
    return episode.worker is not None and episode.action is None and episode.is_replayable
