"""Which actor pools are known to the dispatcher: when they last spoke, what they can take, what they list as held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Pool:
    """A pool as its messages show it. `pool_id` is empty while it was only heard of through the ledger."""

    peer: bytes
    last_heard_s: float
    pool_id: str = ""
    free_actors: int = 0
    num_actors: int = 0
    running_episodes: int = 0
    unacked_trajectories: int = 0
    sent_s: dict[str, float] = field(default_factory=dict[str, float])
    """When each group it holds was last sent to it."""

    @property
    def has_said_hello(self) -> bool:
        """Whether it may be given work."""
        return bool(self.pool_id)


class PoolBook:
    """All pools that hold something or said Hello."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._pools: dict[bytes, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(list(self._pools.values()))

    def expect(self, peer: bytes, now_s: float) -> Pool:
        """The pool behind a peer, entered silently if the ledger says that it holds something."""
        return self._pools.setdefault(peer, Pool(peer=peer, last_heard_s=now_s))

    def known(self, peer: bytes) -> Pool | None:
        """The pool behind a peer if it said Hello."""
        pool = self._pools.get(peer)
        return pool if pool is not None and pool.has_said_hello else None

    def admit(self, peer: bytes, *, pool_id: str, num_actors: int, now_s: float) -> list[Pool]:
        """Enter a pool that said Hello; earlier incarnations of it are removed and returned."""
        earlier = [pool for pool in self if pool.peer != peer and _names(pool, pool_id)]
        for pool in earlier:
            del self._pools[pool.peer]
        pool = self.expect(peer, now_s)
        pool.pool_id, pool.num_actors, pool.last_heard_s = pool_id, num_actors, now_s
        return earlier

    def remove(self, peer: bytes) -> None:
        """Forget a pool."""
        self._pools.pop(peer, None)

    def silent(self, now_s: float) -> list[Pool]:
        """Pools that were not heard of for too long."""
        return [pool for pool in self if now_s - pool.last_heard_s > self._timeout_s]

    def with_capacity(self) -> list[Pool]:
        """Pools that asked for work, most free actors first."""
        return sorted(
            (pool for pool in self if pool.has_said_hello and pool.free_actors > 0),
            key=lambda pool: (-pool.free_actors, pool.peer),
        )


def _names(pool: Pool, pool_id: str) -> bool:
    """Whether a pool is of that name; one known through the ledger only is told by its peer identity."""
    return pool.pool_id == pool_id or pool.peer.rpartition(b"/")[0] == pool_id.encode()
