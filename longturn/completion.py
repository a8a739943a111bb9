"""The completion marker of a folder: the file COMPLETE, written last, with the digests of all others.

Checkpoints, published weights and imitated policies carry it. A folder without it was never finished, or lost it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # JSON

from longturn.disk import DiskError, read_json
from longturn.errors import ConfigError, LongturnError

MARKER = "COMPLETE"


class DamagedFolderError(LongturnError):
    """A folder is not what its completion marker says, or has none; the message names folder and file."""

    reason = "FOLDER_DAMAGED"


def is_marked(folder: Path) -> bool:
    """Whether the folder carries a completion marker, whatever it says."""
    return (folder / MARKER).is_file()


def read_marker(folder: Path) -> dict[str, Any]:
    """What the marker says: the facts it was given, and under `sha256` the digest of every file by its name."""
    if not is_marked(folder):
        raise DamagedFolderError(f"{folder} is damaged: it has no completion marker {MARKER}")
    try:
        content = read_json(folder / MARKER, mend="it must hold an object")
    except (ConfigError, DiskError) as error:
        raise DamagedFolderError(f"{folder} is damaged: {error}") from error
    if not isinstance(content.get("sha256"), dict):
        raise DamagedFolderError(f'{folder} is damaged: its completion marker has no table "sha256"')
    return content


def file_digests(folder: Path) -> dict[str, str]:
    """The digest in hex of every file that the marker names."""
    return {str(name): str(digest) for name, digest in read_marker(folder)["sha256"].items()}


def verify_whole(folder: Path) -> None:
    """Raise DamagedFolderError unless every file named by the marker is there with its digest."""
    for name, digest in file_digests(folder).items():
        file = folder / name
        if not file.is_file() or sha256_of(file) != digest:
            raise DamagedFolderError(f"{folder} is damaged: {name} is missing or does not match its digest")


def write_marker(folder: Path, facts: Mapping[str, object]) -> None:
    """Flush all files of a folder to the disk, then give it its marker."""
    marker = folder / MARKER
    digests: dict[str, str] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path != marker):
        flush_file(file)
        digests[str(file.relative_to(folder))] = sha256_of(file)
    marker.write_text(json.dumps({**facts, "sha256": digests}, indent=1), encoding="utf-8")
    flush_file(marker)
    for part in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(part)


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_file(path: Path) -> None:
    """Make sure that a file's bytes are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make sure that a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
