"""Files that are written whole or not at all, and one clear error where the system refuses, whatever library wrote."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO  # Any: JSON is free-form, readers check what they take

from longturn.errors import ConfigError, LongturnError
from longturn.json_text import parse_json

_FREE, _OPEN = "free space", "let its owner write there, or choose another folder"
_MENDED_BY = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: f"{_FREE} or raise the quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EROFS: _OPEN,
    errno.EACCES: _OPEN,
    errno.EPERM: _OPEN,
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u)",
    errno.ENOMEM: "free memory",
}


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_IN_WORDS = re.compile(r"\(os error (\d+)\)")
"""How libraries written in Rust tell the system's number."""


class DiskError(LongturnError):
    """A file cannot be written or used; the message names it, and what mends it where that is known."""

    reason = "FILE_ERROR"


class DiskFullError(DiskError):
    """A file finds no room: the disk is full, or a quota or limit is reached."""

    reason = "DISK_FULL"


@contextmanager
def writing_to(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn OSError, and whatever else a library raises for it, into DiskError."""
    try:
        yield
    except (OSError, *others) as error:
        mend = _mended_by(error) or _FREE
        message = f"{path} cannot be written: {error}; {mend}, then start again: nothing that was complete is lost"
        raise _kind_of(error)(message) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn OSError into DiskError: the file that the system named, else `path`, and what mends it."""
    try:
        yield
    except OSError as error:
        raise _kind_of(error)(_told(error.filename or path, error)) from error


@contextmanager
def whole_file(path: Path, *, make_folder: bool = True) -> Iterator[BinaryIO]:
    """A file to fill, which takes the place of `path` in one step when the block ends.

    Whatever the block raises leaves `path` as it was and nothing beside it; an OSError comes out as DiskError. Flushed
    to the system, not to the disk: a killed process leaves the old file or the new one.
    """
    if make_folder:
        with naming(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps two writers of one path apart.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with partial.open("wb") as file:
                yield file
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise _kind_of(error)(_told(path, error)) from error


def write_whole(path: Path, data: str | bytes, *, make_folder: bool = True) -> None:
    """Write a file in one piece; DiskError, and the old file stays, if it cannot be."""
    with whole_file(path, make_folder=make_folder) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object in one piece; DiskError if it cannot be."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path, *, mend: str) -> dict[str, Any]:
    """A JSON object; ConfigError that ends with `mend` if the file is damaged, DiskError if it cannot be read."""
    try:
        with naming(path):
            content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); {mend}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is damaged (it holds no object); {mend}")
    return content


def _told(path: Path | str, error: OSError) -> str:
    mend = _mended_by(error)
    what = f"{path}: {error.strerror or error}"
    return f"{what}; {mend}" if mend else what


def _mended_by(error: Exception) -> str | None:
    return _MENDED_BY.get(_number_of(error))


def _kind_of(error: Exception) -> type[DiskError]:
    return DiskFullError if _number_of(error) in _NO_ROOM else DiskError


def _number_of(error: Exception) -> int:
    """The system's number of an error; 0 where it has none."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _IN_WORDS.search(str(error))
    return int(found[1]) if found else 0
