"""The log in the state dir: records of all episodes, appended to numbered segments.

Invariant: what `flush` has written survives the death of this process, and after the next `sync` that of the machine.
A segment is removed only when every episode whose state began in it is gone or was written down anew in a later one.
A record that was cut short ends its segment for the reader: nobody was answered on its account.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import secrets
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from longturn.errors import ConfigError

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<IIBQ")
"""Bytes of the payload, CRC-32 of kind, key and payload, kind, key."""
_CHECKED = struct.Struct("<BQ")
FORMAT = "1"
SECRET_BYTES = 32
SEGMENT_BYTES = 64 * 2**20
KEPT_SEGMENTS = 4
"""Beyond these, episodes that pin the oldest segment are written down anew."""


class RecordKind(IntEnum):
    """What a record says."""

    EPISODE = 1
    """All of an episode; replaces whatever was said of it before."""
    ACTION = 2
    RESULT = 3
    FAILED = 4
    CUT = 5
    DROPPED = 6


class Record(NamedTuple):
    """One record as it was read."""

    kind: int
    key: int
    payload: bytes


class StateLog:
    """One state dir, locked for this process. Its methods belong to one thread, `sync` excepted."""

    def __init__(self, folder: Path) -> None:
        """Raise ConfigError if the folder cannot be used or another server uses it."""
        self.folder = folder
        self._buffer: list[bytes] = []
        self._base: dict[int, int] = {}
        """For each episode, the segment that holds the newest record of all of it."""
        self._num_based: Counter[int] = Counter()
        self._full: list[int] = []
        """Segments that are full and not yet synced."""
        self._is_dirty = False
        with ExitStack() as undo:
            try:
                self._open(undo)
            except OSError as error:
                raise ConfigError(
                    f"the state dir {folder} cannot be used: {error.strerror or error}; change env_server.state_dir"
                ) from error
            undo.pop_all()

    def _open(self, undo: ExitStack) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, self._lock)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another server uses the state dir {self.folder}; stop it, or change env_server.state_dir"
            ) from error
        self._check_format()
        self.secret = self._read_secret()
        self._segments = sorted(int(path.stem) for path in self.folder.glob("*.log"))
        self._old = list(self._segments)
        self._open_segment()

    def _check_format(self) -> None:
        path = self.folder / "format"
        if not path.exists():
            path.write_text(FORMAT, encoding="ascii")
        elif (found := path.read_text(encoding="ascii", errors="replace")) != FORMAT:
            raise ConfigError(
                f"the state dir {self.folder} has format {found!r}, this version reads {FORMAT!r}; serve it with the"
                " version that wrote it until its episodes are over, or choose another env_server.state_dir"
            )

    def _read_secret(self) -> bytes:
        """Random bytes that stay the same as long as the folder does."""
        path = self.folder / "secret"
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.touch(mode=0o600)
            with partial.open("wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"{path} is damaged; restore it, or choose another env_server.state_dir")
        return secret

    def _open_segment(self) -> None:
        number = self._segments[-1] + 1 if self._segments else 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path(number), flags, 0o600)
        self._segments.append(number)
        self._size = 0

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.log"

    def read(self) -> Iterator[Record]:
        """All records that an earlier process wrote, in their order; call it before the first `append`."""
        for number in self._old:
            yield from self._read_segment(number)

    def _read_segment(self, number: int) -> Iterator[Record]:
        data = self._path(number).read_bytes()
        position = 0
        while position + _HEADER.size <= len(data):
            length, checksum, kind, key = _HEADER.unpack_from(data, position)
            start = position + _HEADER.size
            payload = data[start : start + length]
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(_CHECKED.pack(kind, key))) != checksum:
                break
            self._note(kind, key, number)
            yield Record(kind, key, payload)
            position = start + length
        if position < len(data):
            fields = {"path": str(self._path(number)), "offset": position, "num_bytes": len(data) - position}
            logger.warning("the end of a state log segment is unreadable and left out", extra=fields)

    def append(self, kind: int, key: int, payload: bytes = b"") -> None:
        """Add a record; it is written with the next `flush`."""
        checksum = zlib.crc32(payload, zlib.crc32(_CHECKED.pack(kind, key)))
        self._buffer.append(_HEADER.pack(len(payload), checksum, kind, key))
        self._buffer.append(payload)
        self._note(kind, key, self._segments[-1])

    def _note(self, kind: int, key: int, segment: int) -> None:
        if kind in (RecordKind.EPISODE, RecordKind.DROPPED):
            before = self._base.pop(key, None)
            if before is not None:
                self._num_based[before] -= 1
            if kind == RecordKind.EPISODE:
                self._base[key] = segment
                self._num_based[segment] += 1

    @property
    def is_behind(self) -> bool:
        """Whether there are records that are not written."""
        return bool(self._buffer)

    def flush(self) -> None:
        """Hand everything to the operating system; raise OSError if it cannot be, and keep what is missing."""
        data = memoryview(b"".join(self._buffer))
        self._buffer.clear()
        try:
            while data:
                num_written = os.write(self._fd, data)
                self._is_dirty = True
                self._size += num_written
                data = data[num_written:]
        finally:
            if data:
                self._buffer.append(bytes(data))
        if self._size >= SEGMENT_BYTES:
            self._rotate()

    def _rotate(self) -> None:
        full = self._fd
        try:
            self._open_segment()
        except OSError as error:  # no room for another file: this one grows on
            logger.warning("a new state log segment cannot be opened", extra={"reason": str(error)})
            return
        self._full.append(full)

    def pinning(self, max_episodes: int) -> list[int]:
        """Episodes to write down anew, because they alone keep the oldest segment of too many."""
        if len(self._segments) <= KEPT_SEGMENTS:
            return []
        pinning = (key for key, segment in self._base.items() if segment == self._segments[0])
        return list(itertools.islice(pinning, max_episodes))

    async def sync(self) -> None:
        """Hand what is written to the disk itself, then remove the segments that nobody needs; may raise OSError."""
        if not self._is_dirty:
            return
        removable = [] if self.is_behind else self._removable()
        full, self._full = self._full, []
        self._is_dirty = False
        try:
            await asyncio.to_thread(_sync_all, [*full, self._fd])
        except OSError:
            self._is_dirty = True
            self._full = full + self._full
            raise
        for fd in full:
            os.close(fd)
        for number in removable:
            self._path(number).unlink()
            self._segments.remove(number)

    def _removable(self) -> list[int]:
        """The oldest segments without a base; a later one may hold the rest of an episode that begins before it."""
        return list(itertools.takewhile(lambda number: not self._num_based[number], self._segments[:-1]))

    def close(self) -> None:
        """Sync, close the files and unlock the folder. OSError means that what is not written is lost."""
        try:
            self.flush()
            _sync_all([*self._full, self._fd])
        finally:
            for fd in (*self._full, self._fd, self._lock):
                os.close(fd)


def _sync_all(fds: list[int]) -> None:
    for fd in fds:
        os.fdatasync(fd)
