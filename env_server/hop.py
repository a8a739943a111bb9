"""The hop between the server and a worker process: framed items over a socket pair.

An item is a header (kind, key, payload length) and its payload: JSON, an action in UTF-8, or a serialised message.
Items follow each other without further framing, so whatever is ready travels in one write. Nothing is ever unpickled.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

HEADER = struct.Struct("<BQI")
SLOT = struct.Struct("<Qdq")
"""What a worker runs now, in memory shared with the server: key (0: nothing), start on the monotonic clock in seconds,
phase. It outlives a killed worker."""


class Kind(enum.IntEnum):
    """What an item says."""

    START = 1
    STEP = 2
    CLOSE = 3
    REPLAY = 4
    TRANSCRIPT = 5
    PREPARE = 6
    LIST_TASKS = 7

    READY = 16
    RESULT = 17
    REFUSED = 18
    BROKEN = 19


class Phase(enum.IntEnum):
    """Which time limit applies to what a worker runs."""

    START = 1
    STEP = 2
    PREPARE = 3


START, STEP, CLOSE, RESULT = int(Kind.START), int(Kind.STEP), int(Kind.CLOSE), int(Kind.RESULT)


def pack(kind: int, key: int, payload: bytes = b"") -> bytes:
    """One item as bytes."""
    return HEADER.pack(kind, key, len(payload)) + payload


class ItemParser:
    """Cuts a byte stream into items, holding back an incomplete tail."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (kind, key, payload) of every item that is now complete; must be exhausted before the next call."""
        if self._tail:
            data = self._tail + data
        position, end = 0, len(data)
        while end - position >= HEADER.size:
            kind, key, length = HEADER.unpack_from(data, position)
            stop = position + HEADER.size + length
            if stop > end:
                break
            yield kind, key, data[position + HEADER.size : stop]
            position = stop
        self._tail = data[position:]
