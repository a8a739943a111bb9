"""Data that is read or generated once and then kept in the cache: folders, and records in them by position.

Invariant: a folder appears by one rename after all its files are written, and is never changed; who makes or replaces
one holds its lock.
"""

import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from env_server.environment import EnvironmentBrokenError
from env_server.environments.textworld_cache import CACHE_VARIABLE, default_cache_root

logger = logging.getLogger(__name__)

_SIZES = "sizes.json"


def prepared(name: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder `name/key` of the data cache; `build` fills an empty folder where there is no whole one yet.

    One process builds, others wait for it. Raises `EnvironmentBrokenError` where the cache cannot be written.
    """
    root = default_cache_root(os.environ) / "data" / name
    folder = root / key
    try:
        if _is_whole(folder):
            return folder
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes, also when the process dies
            if not _is_whole(folder):  # whoever held the lock may have made it
                _make(folder, root / f"{key}.making", build)
    except OSError as error:
        hint = f"set {CACHE_VARIABLE} to a folder with space that can be written"
        raise EnvironmentBrokenError(f"the data cache {root} failed: {error}; {hint}") from error
    return folder


def files_key(paths: Sequence[Path], version: object) -> str:
    """A key that changes with the files' names, sizes and times, and with the version of what reads them."""
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.blake2b(repr((version, stamps)).encode(), digest_size=12).hexdigest()


def write_records(folder: Path, name: str, records: Iterable[Mapping[str, Any]]) -> str:
    """Write records for `Records`; returns a digest of their content."""
    content = hashlib.blake2b(digest_size=12)
    offsets = array("Q", [0])
    with (folder / f"{name}.jsonl").open("wb") as file:
        for record in records:
            # A lone surrogate, which JSON can spell, could not leave the server.
            line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            content.update(line)
            file.write(line)
            offsets.append(offsets[-1] + len(line))
    (folder / f"{name}.offsets").write_bytes(offsets.tobytes())
    return content.hexdigest()


class Records:
    """Records by position, read from the file when asked for; processes share its pages. May be used by any thread."""

    def __init__(self, folder: Path, name: str) -> None:
        self._lines = mapped(folder / f"{name}.jsonl")
        self._offsets = mapped(folder / f"{name}.offsets").cast("Q")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> dict[str, Any]:
        return json.loads(bytes(self._lines[self._offsets[position] : self._offsets[position + 1]]))


def mapped(path: Path) -> memoryview:
    """A file's bytes, mapped."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _make(folder: Path, scratch: Path, build: Callable[[Path], None]) -> None:
    began_at_s = time.monotonic()
    logger.info("preparing data", extra={"folder": str(folder)})
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        build(scratch)
        sizes = {path.name: path.stat().st_size for path in scratch.iterdir()}
        (scratch / _SIZES).write_text(json.dumps(sizes))
        shutil.rmtree(folder, ignore_errors=True)  # only a folder with files missing or cut short is still here
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    took_s = round(time.monotonic() - began_at_s, 2)
    logger.info("data prepared", extra={"folder": str(folder), "duration_s": took_s})


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _SIZES).read_bytes())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (FileNotFoundError, ValueError, AttributeError):
        return False
