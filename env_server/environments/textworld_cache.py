"""Generated games on disk.

Invariant: an entry folder appears by one rename and is never changed; who makes or replaces an entry holds its lock.
A reader takes no lock: it trusts an entry only if the hashes in its facts match its files.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from env_server.environment import EnvironmentBrokenError
from env_server.environments.textworld_tasks import GENERATOR_VERSION, TEXTWORLD_VERSION, TextWorldTask

CACHE_VARIABLE = "LONGTURN_CACHE"
STORY = "game.z8"
LOGIC = "game.json"
_FACTS = "facts.json"
_NUM_LOCKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GameFacts:
    """What an episode needs to know about its game beside the story file."""

    walkthrough: tuple[str, ...]
    objective: str
    """The game's own introduction; it often spells the walkthrough."""
    goal: str
    """What to achieve, without the way; empty where the family needs no telling."""
    score_max: float
    layout: str
    """Key of the map, by which it belongs to one split; empty where maps are not told apart."""
    exits: Mapping[str, Mapping[str, str]]
    """Room to direction to room, by names in lower case."""
    start: str
    """Room name in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameEntry:
    """A verified game."""

    story: Path
    logic: Path
    facts: GameFacts


class GameCache:
    """Games by task id under one root, shared by any number of processes."""

    def __init__(self, root: Path) -> None:
        self._root = root / f"textworld-{TEXTWORLD_VERSION}-generator-{GENERATOR_VERSION}"

    def find(self, task: TextWorldTask) -> GameEntry | None:
        """The entry, or None where there is none or its hashes do not match."""
        folder = self.folder(task)
        try:
            stored = json.loads((folder / _FACTS).read_bytes())
            hashes = {name: _sha256(folder / name) for name in (STORY, LOGIC)}
            if stored.pop("sha256") != hashes:
                return None
            facts = GameFacts(**stored | {"walkthrough": tuple(stored["walkthrough"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # facts cut short or of another shape: corrupt, so made anew like any other bad entry
        return GameEntry(story=folder / STORY, logic=folder / LOGIC, facts=facts)

    def obtain(self, task: TextWorldTask, make: Callable[[TextWorldTask, Path], GameFacts]) -> GameEntry:
        """The entry; `make` writes STORY and LOGIC into an empty folder where there is no good one yet."""
        try:
            entry = self.find(task)
            if entry is not None:
                return entry
            with self._locked(task):
                entry = self.find(task)  # whoever held the lock may have made it
                if entry is None:
                    self._make(task, make)
                    entry = self.find(task)
        except OSError as error:
            hint = f"set {CACHE_VARIABLE} to a folder with space that can be written"
            raise EnvironmentBrokenError(f"the game cache {self._root} failed: {error}; {hint}") from error
        if entry is None:
            raise EnvironmentBrokenError(
                f"the game of {task.task_id} was written to {self._root} but does not read back"
            )
        return entry

    def folder(self, task: TextWorldTask) -> Path:
        """Where the entry of a task lies."""
        return self._root / task.family.name / task.parameter_text / f"{task.split}-{task.index:06d}"

    def _make(self, task: TextWorldTask, make: Callable[[TextWorldTask, Path], GameFacts]) -> None:
        folder = self.folder(task)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self._scratch(task) as scratch:
            work, ready = scratch / "work", scratch / "ready"
            work.mkdir()
            ready.mkdir()
            stored = asdict(make(task, work))
            stored["sha256"] = {name: _sha256(work / name) for name in (STORY, LOGIC)}
            for name in (STORY, LOGIC):
                os.replace(work / name, ready / name)
            (ready / _FACTS).write_text(json.dumps(stored))
            if folder.exists():  # only a corrupt entry is still here
                os.rename(folder, scratch / "corrupt")
            os.rename(ready, folder)

    @contextmanager
    def _scratch(self, task: TextWorldTask) -> Iterator[Path]:
        """An empty folder of the lock's holder; what a killed predecessor left in it goes first."""
        scratch = self._root / f"making-{_lock_number(task)}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def _locked(self, task: TextWorldTask) -> Iterator[None]:
        locks = self._root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / _lock_number(task)).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, also when the process dies
            yield


def default_cache_root(variables: Mapping[str, str]) -> Path:
    """`LONGTURN_CACHE`, else `longturn` in the user's cache folder."""
    if variables.get(CACHE_VARIABLE):
        return Path(variables[CACHE_VARIABLE]).expanduser()
    base = variables.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "longturn"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _lock_number(task: TextWorldTask) -> str:
    digest = hashlib.blake2b(task.task_id.encode(), digest_size=4).digest()
    return f"{int.from_bytes(digest, 'little') % _NUM_LOCKS:04d}"
