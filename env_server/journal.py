"""What fixes an episode: its start, its actions, and the state hashes they led to.

An action is written down before it is run. A journal on disk is another class with these methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from env_server.replay import ReplayOrder
from env_server.stage import StartOrder


class Journal(Protocol):
    """The journal of one episode. An action without a hash is in flight."""

    def append_action(self, action: str) -> None:
        """Write down an action that is about to be run."""
        ...

    def append_result(self, state_hash: bytes, payload: bytes) -> None:
        """Write down what the start, or the action in flight, led to; `payload` is the worker's serialised result."""
        ...

    def replay_order(self, num_turns: int) -> ReplayOrder:
        """What rebuilds the episode after its first `num_turns` turns."""
        ...

    def actions(self) -> Sequence[str]:
        """All actions, the one in flight included."""
        ...

    def payloads(self) -> Sequence[bytes]:
        """Serialised results of the start and of every turn; empty unless they were kept."""
        ...


class MemoryJournal:
    """A journal in memory. Results are kept only where a replay could not give them again."""

    __slots__ = ("_actions", "_hashes", "_payloads", "_start")

    def __init__(self, start: StartOrder, *, keeps_results: bool) -> None:
        self._start = start
        self._actions: list[str] = []
        self._hashes: list[bytes] = []
        self._payloads: list[bytes] | None = [] if keeps_results else None

    def extend(self, order: ReplayOrder) -> None:
        """Take over the turns of another journal."""
        self._actions.extend(order.actions)
        self._hashes.extend(order.hashes)

    def append_action(self, action: str) -> None:
        """Write down an action that is about to be run."""
        self._actions.append(action)

    def append_result(self, state_hash: bytes, payload: bytes) -> None:
        """Write down what the start, or the action in flight, led to."""
        self._hashes.append(state_hash)
        if self._payloads is not None:
            self._payloads.append(payload)

    def replay_order(self, num_turns: int) -> ReplayOrder:
        """What rebuilds the episode after its first `num_turns` turns."""
        return ReplayOrder(start=self._start, actions=self._actions[:num_turns], hashes=self._hashes[: num_turns + 1])

    def actions(self) -> Sequence[str]:
        """All actions, the one in flight included."""
        return self._actions

    def payloads(self) -> Sequence[bytes]:
        """Serialised results; empty unless they were kept."""
        return self._payloads or ()
