"""One clear error for a file that cannot be written, whatever library wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longturn.errors import LongturnError


class DiskError(LongturnError):
    """A file cannot be written, most often because the disk is full; the message names it."""

    reason = "DISK_FULL"


@contextmanager
def writing_to(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn OSError, and whatever else a library raises for it, into DiskError."""
    try:
        yield
    except (OSError, *others) as error:
        raise DiskError(
            f"{path} cannot be written: {error}; free space, then start again with --resume: nothing that was complete "
            "is lost"
        ) from error
