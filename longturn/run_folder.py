"""A run's folder: for its owner only, and held by one process of a kind at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longturn.disk import naming
from longturn.errors import ConfigError


@contextmanager
def held_folder(folder: Path, lock_name: str, *, refusal: str) -> Iterator[None]:
    """Make the folder and hold the lock file in it; ConfigError with the text `refusal` if another process does,
    DiskError if the folder cannot be made.
    """
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Sockets and keys lie in it.
        folder.chmod(0o700)
        descriptor = os.open(folder / lock_name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(refusal) from error
        yield
    finally:
        os.close(descriptor)
