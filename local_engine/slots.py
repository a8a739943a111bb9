"""Which tokens lie in which key-value slot, and which slot a new request should get.

Invariant: `lengths[slot]` positions of a slot are computed and belong to `ids[slot, :length]` in its namespace; a slot
with an owner is never given away. Finished requests leave their tokens behind, so a later turn of the same episode
continues in place and group members copy a shared prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Comparing this many leading tokens of all slots first leaves few slots for the full comparison.
SCAN_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOffer:
    """Where a request will run and what it need not compute."""

    slot: int
    num_reused: int
    copy_from: int | None
    """Slot whose first `num_reused` positions must be copied, or None when they are already in place."""


class SlotTable:
    """Bookkeeping of all slots; knows nothing of tensors."""

    def __init__(self, *, num_slots: int, slot_tokens: int, can_rewind: bool) -> None:
        self.slot_tokens = slot_tokens
        self._can_rewind = can_rewind
        self._ids: NDArray[np.int32] = np.zeros((num_slots, slot_tokens), dtype=np.int32)
        self.lengths: NDArray[np.int64] = np.zeros(num_slots, dtype=np.int64)
        self._last_used: NDArray[np.int64] = np.zeros(num_slots, dtype=np.int64)
        self._has_owner: NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        self._namespaces: list[str] = [""] * num_slots
        self._clock = 0

    @property
    def num_used_tokens(self) -> int:
        """Positions held by requests that run now."""
        return int(self.lengths[self._has_owner].sum())

    def offer(self, prompt: NDArray[np.int32], *, namespace: str, max_reused: int) -> SlotOffer | None:
        """The best free slot for a prompt, or None if every slot has an owner. Changes nothing.

        At most `max_reused` leading tokens are taken from the cache.
        """
        free = np.flatnonzero(~self._has_owner)
        if free.size == 0:
            return None
        shared = self._shared_lengths(prompt, namespace)
        reusable = np.minimum(shared, max_reused)
        is_extended = (shared == self.lengths) & ~self._has_owner & (shared > 0)
        if not self._can_rewind:
            is_extended &= shared <= max_reused
            reusable = np.where(is_extended, reusable, 0)
        source = int(reusable.argmax())
        if reusable[source] == 0:
            return SlotOffer(slot=self._oldest(free), num_reused=0, copy_from=None)
        num_reused = int(reusable[source])
        in_place = np.flatnonzero(is_extended & (reusable == num_reused))
        if in_place.size:
            return SlotOffer(slot=int(in_place[0]), num_reused=num_reused, copy_from=None)
        others = free[free != source]
        if others.size == 0:
            return SlotOffer(slot=source, num_reused=num_reused, copy_from=None)
        return SlotOffer(slot=self._oldest(others), num_reused=num_reused, copy_from=source)

    def take(self, offer: SlotOffer, prompt: NDArray[np.int32], *, namespace: str) -> None:
        """Give the offered slot to a request; its reused positions count as computed."""
        self._has_owner[offer.slot] = True
        self._namespaces[offer.slot] = namespace
        self._ids[offer.slot, : len(prompt)] = prompt
        self.lengths[offer.slot] = offer.num_reused

    def extend(self, slot: int, start: int, token_ids: Sequence[int]) -> None:
        """Record that `token_ids` were computed at `start`."""
        end = start + len(token_ids)
        self._ids[slot, start:end] = token_ids
        self.lengths[slot] = end

    def extend_rows(self, slots: Sequence[int], positions: Sequence[int], token_ids: Sequence[int]) -> None:
        """`extend` by one token for many slots at once."""
        rows = np.asarray(slots, dtype=np.intp)
        starts = np.asarray(positions, dtype=np.intp)
        self._ids[rows, starts] = token_ids
        self.lengths[rows] = starts + 1

    def release(self, slot: int) -> None:
        """Free a slot and keep its computed tokens for reuse."""
        self._clock += 1
        self._has_owner[slot] = False
        self._last_used[slot] = self._clock

    def forget(self, slot: int) -> None:
        """Free a slot and drop its tokens."""
        self._has_owner[slot] = False
        self.lengths[slot] = 0
        self._last_used[slot] = 0

    def forget_idle(self) -> None:
        """Drop the tokens of every slot without an owner."""
        self.lengths[~self._has_owner] = 0
        self._last_used[~self._has_owner] = 0

    def _oldest(self, free: NDArray[np.intp]) -> int:
        """The free slot whose loss hurts least: an empty one, else the least recently used."""
        age = np.where(self.lengths[free] == 0, -1, self._last_used[free])
        return int(free[age.argmin()])

    def _shared_lengths(self, prompt: NDArray[np.int32], namespace: str) -> NDArray[np.int64]:
        """How many leading tokens each slot shares with the prompt, 0 in other namespaces."""
        num_scanned = min(SCAN_TOKENS, len(prompt))
        shared = np.minimum(leading_equal(self._ids[:, :num_scanned], prompt[:num_scanned]), self.lengths)
        for slot in np.flatnonzero(shared):
            if self._namespaces[slot] != namespace:
                shared[slot] = 0
            elif shared[slot] == num_scanned:
                num_compared = min(len(prompt), int(self.lengths[slot]))
                row = self._ids[slot : slot + 1, :num_compared]
                shared[slot] = leading_equal(row, prompt[:num_compared])[0]
        return shared


def leading_equal(rows: NDArray[np.int32], prompt: NDArray[np.int32]) -> NDArray[np.int64]:
    """Length of the common prefix of each row with the prompt (equal widths)."""
    differs = rows != prompt
    first = differs.argmax(axis=1)
    return np.where(differs[np.arange(len(rows)), first], first, len(prompt)).astype(np.int64)
