"""Engines in rotation, as the learner announced them, and the versions that it confirmed.

Invariant: within a run, announcements of an older epoch change nothing, and a confirmed version stays confirmed, since
versions are never used twice. Nothing known of one run holds in another.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from longturn.errors import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine in rotation."""

    url: str
    policy_version: int | None = None
    """Version that it confirmed; None for an engine outside a run."""
    api_key: str = field(default="", repr=False)
    cache_salt: str = ""
    """Only requests of one salt share cached prefixes; empty: none is sent."""

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of a request to it."""
        authorization = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **authorization}


class EngineRegistry:
    """What a pool knows of the engines. One event loop."""

    def __init__(self, engines: Sequence[Engine] = ()) -> None:
        """`engines` without an announcement stand outside a run: whatever version they report is taken."""
        self._engines = tuple(engines)
        self._confirmed: set[int] = set()
        self._changed = asyncio.Event()
        self.run_epoch = 0
        self.policy_version = 0
        """Newest announced version."""
        self.is_announced = False
        """Whether a learner says which engines there are."""

    def announce(self, engines: Sequence[Engine], *, policy_version: int, run_epoch: int) -> bool:
        """Take an announcement; False if it is of an older epoch, or older than what is known, and was ignored."""
        if (run_epoch, policy_version) < (self.run_epoch, self.policy_version):
            return False
        self.run_epoch, self.policy_version = run_epoch, policy_version
        self._engines = tuple(engines)
        self._confirmed.update(engine.policy_version for engine in engines if engine.policy_version is not None)
        self._confirmed.add(policy_version)
        self.is_announced = True
        self._tell_change()
        return True

    def begin_run(self) -> None:
        """Forget everything: another run begins, and until its first announcement there is no engine."""
        self.run_epoch, self.policy_version = 0, 0
        self._engines = ()
        self._confirmed.clear()
        self.is_announced = True
        self._tell_change()

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines in rotation."""
        return self._engines

    def choose(self, episode_key: str, *, avoid: Collection[str] = ()) -> Engine:
        """The engine of an episode by rendezvous hashing: it moves only if its engine leaves or is avoided."""
        candidates = [engine for engine in self._engines if engine.url not in avoid] or list(self._engines)
        if not candidates:
            raise PolicyError(f"episode {episode_key}: no engine is in rotation", reason="NO_ENGINE")
        if len(candidates) == 1:
            return candidates[0]
        return max(candidates, key=lambda engine: _weight(engine.url, episode_key))

    def is_confirmed(self, versions: Collection[int]) -> bool:
        """Whether every version was confirmed; always true outside a run."""
        return not self.is_announced or self._confirmed.issuperset(versions)

    @property
    def is_empty(self) -> bool:
        """Whether a learner says which engines there are and now names none; that may pass."""
        return self.is_announced and not self._engines

    async def wait_change(self, timeout_s: float) -> bool:
        """Wait for the next announcement; False after `timeout_s` without one."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True


def _weight(url: str, episode_key: str) -> bytes:
    return hashlib.blake2b(f"{url}\0{episode_key}".encode(), digest_size=8).digest()
