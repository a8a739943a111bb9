"""Checkpoint folders on disk: `checkpoints/step-000010/`, complete or not there.

A folder is written under a hidden name, flushed, given its COMPLETE marker (names, sizes and digests of its files) and
then renamed, so a kill at any moment leaves either the old state or the new one. Loads no torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
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
from longturn.disk import DiskError, read_json, writing_to
from longturn.errors import ConfigError, LongturnError

logger = logging.getLogger(__name__)
# A second checkpoint of one training step, after skipped batches, is told apart by a suffix.
_NAME = re.compile(r"step-(\d+)(-b\d+)?")
MARKER = "COMPLETE"
STATE_FILE = "state.json"
_WAY_OUT = "remove the folder to resume from another one, or set learner.checkpoint.on_damage=previous"


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
    """All complete checkpoints, oldest first by the number of consumed batches; names and clocks decide nothing.

    CheckpointError if the marker of one is damaged.
    """
    return sorted(found_at(path) for path in marked_folders(folder))


def marked_folders(folder: Path) -> list[Path]:
    """Checkpoint folders that carry a completion marker, whatever it says."""
    return [path for path in _named_folders(folder) if (path / MARKER).is_file()]


def resumable_folders(folder: Path) -> list[Path]:
    """Checkpoint folders that a run may go on from, and those that it should have: whole or damaged.

    One that lost its completion marker counts, for it was given its name with the marker in it. Not one below a marked
    one: an interrupted pruning leaves such, and it is passed over with a warning.
    """
    marked = marked_folders(folder)
    newest = max(map(_training_step, marked), default=-1)
    unmarked = [path for path in _named_folders(folder) if path not in marked]
    for path in unmarked:
        if _training_step(path) <= newest:
            logger.warning(
                "folder without a completion marker passed over: it is no checkpoint, and may be removed",
                extra={"path": path},
            )
    return sorted([*marked, *(path for path in unmarked if _training_step(path) > newest)])


def _named_folders(folder: Path) -> list[Path]:
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if _NAME.fullmatch(path.name))


def _training_step(path: Path) -> int:
    return int(path.name.split("-")[1])


def found_at(path: Path) -> FoundCheckpoint:
    """What name and marker of a checkpoint say; CheckpointError if the marker is damaged."""
    match = _NAME.fullmatch(path.name)
    batches_consumed = _read_marker(path).get("batches_consumed")
    if match is None or not isinstance(batches_consumed, int):
        # Read as 0 it would be the oldest, and pruned.
        raise _damaged_marker(path, "it does not say how many batches were consumed")
    return FoundCheckpoint(training_step=int(match.group(1)), batches_consumed=batches_consumed, path=path)


def _read_marker(path: Path) -> dict[str, Any]:
    if not (path / MARKER).is_file():
        raise CheckpointError(f"checkpoint {path} is damaged: it has no completion marker {MARKER}; {_WAY_OUT}")
    try:
        content = read_json(path / MARKER, mend=_WAY_OUT)
    except (ConfigError, DiskError) as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(content.get("sha256"), dict):
        raise _damaged_marker(path, "it names no files")
    return content


def _damaged_marker(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"the completion marker of {path} is damaged: {why}; {_WAY_OUT}")


def verify(path: Path) -> None:
    """Raise CheckpointError unless every file named by the marker is there with its digest."""
    for name, digest in _read_marker(path)["sha256"].items():
        file = path / name
        if not file.is_file() or sha256_of(file) != digest:
            raise CheckpointError(
                f"checkpoint {path} is damaged: {name} is missing or does not match its digest; {_WAY_OUT}"
            )


def read_claim(path: Path) -> HistoryClaim:
    """What a checkpoint says of its own history; CheckpointError if it does not."""
    try:
        state = read_json(path / STATE_FILE, mend="restore it")
        return HistoryClaim(
            run_id=state["run_id"],
            training_step=state["training_step"],
            batches_consumed=state["batches_consumed"],
            history_digest=state["history_digest"],
        )
    except (ConfigError, DiskError, KeyError) as error:
        raise CheckpointError(f"{path / STATE_FILE} does not tell its history: {error!r}; restore it") from error


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


def abandon(folder: Path, path: Path) -> Path:
    """Set a checkpoint aside, whose history ends here; its new name."""
    number = sum(1 for _ in folder.glob("abandoned-*"))
    target = folder / f"abandoned-{number:03d}-{path.name}"
    path.rename(target)
    return target


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
