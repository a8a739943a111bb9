"""Takes over the warm start of another run, so that runs which differ only in training start from the same policy."""

from __future__ import annotations

import shutil
from pathlib import Path

from longturn.completion import DamagedFolderError, verify_whole
from longturn.config import Tree, read_toml
from longturn.errors import ConfigError
from longturn.launch.layout import RunLayout
from longturn.launch.phases import phase_marker

_PHASES = ("task files", "games", "demonstrations", "imitation", "gate", "evaluation before")
_LAST_NEEDED = "gate"
_TABLES = ("tasks", "warmstart", "imitate", "evaluation")


def check_same_start(document: Tree, seed: int, source: RunLayout, source_seed: int) -> None:
    """Raise ConfigError unless a run of these settings would have made the warm start of `source`, and it is whole."""
    if not phase_marker(source.phases, _LAST_NEEDED).exists():
        raise ConfigError(f"{source.folder} has no warm start that passed its gate; finish it with --resume first")
    theirs = read_toml(source.source)
    differing = [table for table in _TABLES if document.get(table) != theirs.get(table)]
    if differing:
        raise ConfigError(
            f"the warm start of {source.folder} was made with other settings in [{'], ['.join(differing)}];"
            " give the same ones, or leave --warm-start out"
        )
    if seed != source_seed:
        raise ConfigError(
            f"the warm start of {source.folder} was made with seed {source_seed}, not {seed}; give --seed {source_seed}"
        )
    check_whole(source.warm_start, mend="restore it, or leave --warm-start out")


def check_whole(model: Path, *, mend: str) -> None:
    """ConfigError, which ends with `mend`, unless a policy's folder is what its completion marker says."""
    try:
        verify_whole(model)
    except DamagedFolderError as error:
        raise ConfigError(f"{error}; {mend}") from error


def copy_warm_start(source: RunLayout, target: RunLayout) -> None:
    """Copy policy, demonstrations, task files, what was evaluated before training, and the marks of those phases."""
    for folder in (source.tasks("train").parent, source.warm_start.parent):
        shutil.copytree(folder, target.folder / folder.name, dirs_exist_ok=True)
    _copy_files(source, target, "evaluations", ("gate.t*.json", "before.t*.json"))
    _copy_files(source, target, source.phases.name, tuple(f"{phase}.json" for phase in _PHASES))


def _copy_files(source: RunLayout, target: RunLayout, name: str, patterns: tuple[str, ...]) -> None:
    (target.folder / name).mkdir(exist_ok=True)
    paths: list[Path] = [path for pattern in patterns for path in (source.folder / name).glob(pattern)]
    for path in paths:
        shutil.copy(path, target.folder / name)
