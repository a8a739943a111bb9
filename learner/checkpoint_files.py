"""Checkpoint folders on disk: `checkpoints/step-000010/`, complete or not there.

A folder is written under a hidden name, flushed, given its COMPLETE marker (names, sizes and digests of its files) and
then renamed, so a kill at any moment leaves either the old state or the new one. Loads no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from learner.history import HistoryClaim
from longturn.disk import writing_to
from longturn.errors import LongturnError

# A second checkpoint of one training step, after skipped batches, is told apart by a suffix.
_NAME = re.compile(r"step-(\d+)(-b\d+)?")
MARKER = "COMPLETE"
STATE_FILE = "state.json"


class CheckpointError(LongturnError):
    """A checkpoint is incomplete or damaged; the message names it and the way out."""

    reason = "CHECKPOINT_DAMAGED"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FoundCheckpoint:
    """A checkpoint folder that carries its completion marker."""

    training_step: int
    batches_consumed: int
    path: Path


def find_checkpoints(folder: Path) -> list[FoundCheckpoint]:
    """All complete checkpoints, oldest first by the number of consumed batches; names and clocks decide nothing."""
    found: list[FoundCheckpoint] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and (path / MARKER).is_file():
            batches_consumed = int(_read_marker(path).get("batches_consumed", 0))
            found.append(
                FoundCheckpoint(training_step=int(match.group(1)), batches_consumed=batches_consumed, path=path)
            )
    return sorted(found)


def _read_marker(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / MARKER).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("sha256"), dict):
            raise ValueError("it names no files")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the completion marker of {path} is damaged: {error}; remove the folder") from error
    return content


def verify(path: Path) -> None:
    """Raise CheckpointError unless every file named by the marker is there with its digest."""
    for name, digest in _read_marker(path)["sha256"].items():
        file = path / name
        if not file.is_file() or sha256_of(file) != digest:
            raise CheckpointError(
                f"checkpoint {path} is damaged: {name} is missing or does not match its digest; remove the folder to "
                "resume from the one before, or set checkpoint.on_damage=previous"
            )


def read_claim(path: Path) -> HistoryClaim:
    """What a checkpoint says of its own history."""
    state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    return HistoryClaim(
        run_id=state["run_id"],
        training_step=state["training_step"],
        batches_consumed=state["batches_consumed"],
        history_digest=state["history_digest"],
    )


@contextmanager
def writing(folder: Path, training_step: int, *, batches_consumed: int) -> Iterator[Path]:
    """Give an empty folder to fill; afterwards it becomes a checkpoint in one rename. An exception leaves nothing."""
    name = f"step-{training_step:06d}"
    if (folder / name).exists():
        name = f"{name}-b{batches_consumed:06d}"
    with sealed_folder(folder, name, facts={"batches_consumed": batches_consumed}) as partial:
        yield partial


@contextmanager
def sealed_folder(parent: Path, name: str, *, facts: Mapping[str, object]) -> Iterator[Path]:
    """Give an empty folder to fill; afterwards it is flushed, marked complete, and renamed to `name`.

    DiskError, and nothing left behind, if it cannot be written.
    """
    partial = parent / f".{name}.partial"
    with writing_to(parent / name, SafetensorError):
        parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            _seal(partial, facts)
            partial.rename(parent / name)
            sync_folder(parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def abandon_after(folder: Path, chosen: FoundCheckpoint) -> list[Path]:
    """Set aside checkpoints newer than the chosen one, whose history ends here; their new names."""
    moved: list[Path] = []
    for checkpoint in find_checkpoints(folder):
        if checkpoint.batches_consumed > chosen.batches_consumed:
            number = sum(1 for _ in folder.glob("abandoned-*"))
            target = folder / f"abandoned-{number:03d}-{checkpoint.path.name}"
            checkpoint.path.rename(target)
            moved.append(target)
    return moved


def _seal(partial: Path, facts: Mapping[str, object]) -> None:
    digests: dict[str, str] = {}
    for file in sorted(path for path in partial.rglob("*") if path.is_file()):
        flush_file(file)
        digests[str(file.relative_to(partial))] = sha256_of(file)
    marker = partial / MARKER
    marker.write_text(json.dumps({**facts, "sha256": digests}, indent=1), encoding="utf-8")
    flush_file(marker)
    for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
        sync_folder(folder)


def prune(folder: Path, *, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints."""
    for checkpoint in find_checkpoints(folder)[:-keep]:
        # Without its marker a half-removed folder is no checkpoint.
        (checkpoint.path / MARKER).unlink()
        shutil.rmtree(checkpoint.path)


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
