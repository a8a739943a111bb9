"""Checkpoint folders on disk: `checkpoints/step-000010/`, complete or not there.

A folder is written under a hidden name, flushed, given its COMPLETE marker (names, sizes and digests of its files) and
then renamed, so a kill at any moment leaves either the old state or the new one. Loads no torch.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from learner.history import HistoryClaim
from longturn.completion import (
    MARKER,
    DamagedFolderError,
    is_marked,
    read_marker,
    sync_folder,
    verify_whole,
    write_marker,
)
from longturn.disk import DiskError, read_json, writing_to
from longturn.errors import ConfigError, LongturnError

logger = logging.getLogger(__name__)
# A second checkpoint of one training step, after skipped batches, is told apart by a suffix.
_NAME = re.compile(r"step-(\d+)(-b\d+)?")
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
    return [path for path in _named_folders(folder) if is_marked(path)]


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
    with _saying_the_way_out():
        batches_consumed = read_marker(path).get("batches_consumed")
        if match is None or not isinstance(batches_consumed, int):
            # Read as 0 it would be the oldest, and pruned.
            raise DamagedFolderError(f"{path} is damaged: its marker does not say how many batches were consumed")
    return FoundCheckpoint(training_step=int(match.group(1)), batches_consumed=batches_consumed, path=path)


def verify(path: Path) -> None:
    """Raise CheckpointError unless every file named by the marker is there with its digest."""
    with _saying_the_way_out():
        verify_whole(path)


@contextmanager
def _saying_the_way_out() -> Iterator[None]:
    try:
        yield
    except DamagedFolderError as error:
        raise CheckpointError(f"checkpoint {error}; {_WAY_OUT}") from error


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
            write_marker(partial, facts)
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


def prune(folder: Path, *, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints."""
    for checkpoint in find_checkpoints(folder)[:-keep]:
        # Without its marker a half-removed folder is no checkpoint.
        (checkpoint.path / MARKER).unlink()
        shutil.rmtree(checkpoint.path)
