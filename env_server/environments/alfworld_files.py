"""ALFWorld's own games, where the environment variable `ALFWORLD_DATA` of the server's process names their folder.

The folder is what `alfworld-download` fills: `json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl`. All games are read once, into
an index in the cache. A file that is no good is left out of it and listed beside it, in `quarantined.jsonl`.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from env_server.environment import EnvironmentBrokenError, TaskInfo
from env_server.environments.alfworld_translation import Game
from env_server.environments.data_store import files_key, prepared, write_records

logger = logging.getLogger(__name__)

DATA_VARIABLE = "ALFWORLD_DATA"
SPLITS = ("train", "valid_seen", "valid_unseen")
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
INDEX_VERSION = 1
"""Rises whenever the same files may give another index."""

_GAME_FILE = "game.tw-pddl"
_TEXTS = ("pddl_domain", "grammar", "pddl_problem")
_PROGRESS_EVERY = 500
_SHOWN = 5
_HOW = "set it to the folder that alfworld-download has filled, or unset it to play generated games alone"


class BadGameError(Exception):
    """A game file that cannot be played; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One game file."""

    task_id: str
    split: str
    task_type: str
    path: str

    @property
    def info(self) -> TaskInfo:
        """As it is listed."""
        return TaskInfo(
            task_id=self.task_id,
            split=self.split,
            kind=f"file/{self.task_type}",
            knobs={"source": "file", "type": self.task_type},
            score_max=1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIndex:
    """The good games of a folder, and why others were left out."""

    by_split: Mapping[str, Sequence[FileEntry]]
    by_id: Mapping[str, FileEntry]
    quarantined: Mapping[str, str]
    """Task id to reason."""
    data_hash: str


NO_FILES = FileIndex(by_split=dict.fromkeys(SPLITS, ()), by_id={}, quarantined={}, data_hash="")


@lru_cache(maxsize=4)
def open_index(path_text: str) -> FileIndex:
    """The index of the games at a path, made first where there is none yet; empty where the path is.

    Raises `EnvironmentBrokenError` where the path holds no games.
    """
    if not path_text:
        return NO_FILES
    root = _games_root(Path(path_text).expanduser())
    paths = list(_game_files(root))
    if not paths:
        raise EnvironmentBrokenError(f"{DATA_VARIABLE} names {path_text}, which holds no {_GAME_FILE}; {_HOW}")
    folder = prepared("alfworld", files_key(paths, INDEX_VERSION), lambda folder: _build(folder, root, paths))
    entries = [FileEntry(**values) for values in _lines(folder / "games.jsonl")]
    quarantined = {values["task_id"]: values["reason"] for values in _lines(folder / "quarantined.jsonl")}
    if quarantined:
        logger.warning(
            "game files are left out", extra={"num_files": len(quarantined), "list": str(folder / "quarantined.jsonl")}
        )
    return FileIndex(
        by_split={split: [entry for entry in entries if entry.split == split] for split in SPLITS},
        by_id={entry.task_id: entry for entry in entries},
        quarantined=quarantined,
        data_hash=json.loads((folder / "facts.json").read_bytes())["data_hash"],
    )


def game_file(game: Game) -> str:
    """The content of a game file, as ALFWorld and TextWorld load it."""
    texts = {"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem}
    return json.dumps(texts | {"solvable": True, "walkthrough": list(game.walkthrough)})


def read_game(path: Path) -> Game:
    """The game of a file; `BadGameError` where it is none, or one that cannot be solved."""
    return _game(path.read_bytes())


def load_game(entry: FileEntry) -> Game:
    """The game of an entry; `EnvironmentBrokenError` where its file went bad since it was indexed."""
    try:
        return read_game(Path(entry.path))
    except (OSError, BadGameError) as error:
        hint = "restore it and restart the server, or take another task"
        raise EnvironmentBrokenError(f"{entry.path} can no longer be read: {error}; {hint}") from error


def _game(content: bytes) -> Game:
    try:
        values = json.loads(content)
    except ValueError as error:
        raise BadGameError(f"no JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadGameError("no JSON object")
    for name in _TEXTS:
        if not isinstance(values.get(name), str):
            raise BadGameError(f"it has no {name}")
    if values.get("solvable") is not True:
        raise BadGameError("it is not marked as solvable")
    walkthrough = values.get("walkthrough") or ()
    return Game(
        domain=values["pddl_domain"],
        grammar=values["grammar"],
        problem=values["pddl_problem"],
        walkthrough=tuple(str(command) for command in walkthrough),
    )


def _games_root(path: Path) -> Path:
    if not path.is_dir():
        raise EnvironmentBrokenError(f"{DATA_VARIABLE} names {path}, which is no folder; {_HOW}")
    inside = sorted(folder for folder in path.glob("json_*") if folder.is_dir())
    return inside[-1] if inside else path


def _game_files(root: Path) -> Iterator[Path]:
    for split in SPLITS:
        for path in sorted((root / split).glob(f"*/*/{_GAME_FILE}")):
            name = path.parent.parent.name
            # As ALFWorld itself does; its expert and its tasks leave these out.
            if name.split("-")[0] in TASK_TYPES and "movable" not in name and "Sliced" not in name:
                yield path


def _build(folder: Path, root: Path, paths: Sequence[Path]) -> None:
    games: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    content = hashlib.sha256()
    for number, path in enumerate(paths, start=1):
        split, task, trial = path.relative_to(root).parts[:3]
        task_id = f"file/{split}/{task}/{trial}"
        try:
            data = path.read_bytes()
            _game(data)
        except (OSError, BadGameError) as error:
            bad.append({"task_id": task_id, "path": str(path), "reason": str(error)})
        else:
            content.update(f"{task_id}\0{hashlib.sha256(data).hexdigest()}\n".encode())
            entry = FileEntry(task_id=task_id, split=split, task_type=task.split("-")[0], path=str(path))
            games.append(asdict(entry))
        if number % _PROGRESS_EVERY == 0 or number == len(paths):
            logger.info("indexing games", extra={"num_read": number, "num_files": len(paths), "num_bad": len(bad)})
    for item in bad[:_SHOWN]:
        logger.warning("game file quarantined", extra=item)
    write_records(folder, "games", games)
    write_records(folder, "quarantined", bad)
    (folder / "facts.json").write_text(json.dumps({"data_hash": content.hexdigest()[:16]}))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
