"""What fixes an episode: its start, its actions, and the state hashes they led to.

An action is written down before it is run. Turns are packed one after another: thirty take about a kilobyte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

from env_server.replay import ReplayOrder
from env_server.start_request import StartRequest

_TURN = struct.Struct("<IB")
"""Bytes of the action and of the hash; both follow."""


class TurnLog(Protocol):
    """A copy of every journal, outside this process's memory."""

    def add_action(self, key: int, turn_index: int, action: str) -> None:
        """An action is about to be run."""
        ...

    def add_result(self, key: int, turn_index: int, payload: bytes) -> None:
        """What the action of this turn led to."""
        ...


class Journal:
    """The journal of one episode. Results are kept only where a replay could not give them again."""

    __slots__ = ("_key", "_log", "_payloads", "_request", "_turns", "initial_hash", "num_turns")

    def __init__(
        self,
        key: int,
        request: StartRequest,
        *,
        initial_hash: bytes,
        turns: bytes = b"",
        num_turns: int = 0,
        payloads: Sequence[bytes] | None = None,
    ) -> None:
        """`turns` are packed as in `packed`; `payloads`, unless None, are the results of the start and of the turns."""
        self._key, self._request = key, request
        self._log: TurnLog | None = None
        self._turns = bytearray(turns)
        self._payloads = None if payloads is None else list(payloads)
        self.initial_hash = initial_hash
        self.num_turns = num_turns

    def copy_to(self, log: TurnLog) -> None:
        """From now on give every turn to `log` as well."""
        self._log = log

    def append_action(self, action: str) -> None:
        """Write down an action that is about to be run."""
        if self._log is not None:
            self._log.add_action(self._key, self.num_turns, action)

    def append_turn(self, action: str, state_hash: bytes, payload: bytes) -> None:
        """Write down what an action led to; `payload` is the worker's serialised result."""
        encoded = action.encode()
        self._turns += _TURN.pack(len(encoded), len(state_hash)) + encoded + state_hash
        if self._payloads is not None:
            self._payloads.append(payload)
        if self._log is not None:
            self._log.add_result(self._key, self.num_turns, payload)
        self.num_turns += 1

    def turns(self) -> Iterator[tuple[str, bytes]]:
        """Action and state hash of every turn."""
        position, packed = 0, bytes(self._turns)
        while position < len(packed):
            num_action, num_hash = _TURN.unpack_from(packed, position)
            position += _TURN.size
            end = position + num_action
            yield packed[position:end].decode(), packed[end : end + num_hash]
            position = end + num_hash

    def packed(self, num_turns: int | None = None) -> bytes:
        """The first turns, or all, as `Journal` takes them."""
        if num_turns is None or num_turns == self.num_turns:
            return bytes(self._turns)
        position = 0
        for _ in range(num_turns):
            num_action, num_hash = _TURN.unpack_from(self._turns, position)
            position += _TURN.size + num_action + num_hash
        return bytes(self._turns[:position])

    def replay_order(self, num_turns: int) -> ReplayOrder:
        """What rebuilds the episode after its first `num_turns` turns."""
        turns = [turn for _, turn in zip(range(num_turns), self.turns(), strict=False)]
        return ReplayOrder(
            start=self._request.order,
            actions=[action for action, _ in turns],
            hashes=[self.initial_hash, *(state_hash for _, state_hash in turns)],
        )

    def payloads(self) -> Sequence[bytes]:
        """Serialised results of the start and of every turn; empty unless they are kept."""
        return self._payloads or ()

    @property
    def keeps_payloads(self) -> bool:
        """Whether results are kept."""
        return self._payloads is not None
