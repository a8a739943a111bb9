"""Where the problems come from: the package, or the files that `LONGTURN_CODE_DATA` names on the server.

A file of that path, a `.jsonl` with a row a line, belongs to the split that its name begins with (train, valid, test),
else to train. An index over the rows is made once and kept in the cache; rows that are no problem are left out of it
and named in the log.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from env_server.environment import EnvironmentBrokenError, TaskInfo, TaskNotFoundError
from env_server.environments.code_problems import BadProblemError, Problem, problem_from_row
from env_server.environments.textworld_cache import default_cache_root
from longturn.disk import DiskError, write_whole
from longturn.nearest import nearest_name

logger = logging.getLogger(__name__)

DATA_VARIABLE = "LONGTURN_CODE_DATA"
SPLITS = ("train", "valid", "test")
INDEX_VERSION = 1
"""Rises whenever the same files may give another index."""
_OWN_FILE = Path(__file__).with_name("code_problems.jsonl")
_SHOWN_BAD_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a problem lies."""

    task_id: str
    split: str
    kind: str
    file: int
    """Place in `ProblemSet.files`."""
    offset: int
    num_bytes: int
    has_solution: bool


class ProblemSet:
    """Problems by task id; rows are read when asked for."""

    def __init__(self, files: Sequence[Path], entries: Sequence[Entry], data_hash: str) -> None:
        self.files = files
        self.data_hash = data_hash
        self.by_split: Mapping[str, Sequence[Entry]] = {
            split: [entry for entry in entries if entry.split == split] for split in SPLITS
        }
        self._by_id = {entry.task_id: entry for entry in entries}

    @property
    def has_solutions(self) -> bool:
        """Whether every problem has one."""
        return all(entry.has_solution for entry in self._by_id.values())

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that have a problem."""
        return tuple(split for split in SPLITS if self.by_split[split])

    def entry(self, task_id: str) -> Entry:
        """Raise TaskNotFoundError naming the nearest id."""
        if task_id not in self._by_id:
            raise TaskNotFoundError(task_id, nearest=nearest_name(task_id[:100], self._by_id))
        return self._by_id[task_id]

    def info(self, entry: Entry) -> TaskInfo:
        """A problem as it is listed."""
        return TaskInfo(task_id=entry.task_id, split=entry.split, kind=entry.kind, score_max=1.0)

    def problem(self, task_id: str) -> Problem:
        """Read a problem; EnvironmentBrokenError if the file changed under the server."""
        entry = self.entry(task_id)
        path = self.files[entry.file]
        try:
            with path.open("rb") as file:
                file.seek(entry.offset)
                return problem_from_row(json.loads(file.read(entry.num_bytes)))
        except (OSError, ValueError) as error:
            hint = "it changed since the server started: restart it"
            raise EnvironmentBrokenError(f"{path} at byte {entry.offset}: {error}; {hint}") from error


def problem_set() -> ProblemSet:
    """The problems that this process serves; EnvironmentBrokenError if the path or a file is no good."""
    return _problem_set(os.environ.get(DATA_VARIABLE, ""))


def own_data_hash() -> str:
    """Fixes the package's problems."""
    return hashlib.sha256(_OWN_FILE.read_bytes()).hexdigest()[:16]


@cache
def _problem_set(path_text: str) -> ProblemSet:
    if not path_text:
        return ProblemSet([_OWN_FILE], list(_own_entries()), own_data_hash())
    files = _data_files(Path(path_text).expanduser())
    index = _cached_index(files)
    entries = [Entry(**entry) for entry in index["entries"]]
    if not entries:
        raise EnvironmentBrokenError(f"{DATA_VARIABLE} names {path_text}, which holds no problem; set it to another")
    return ProblemSet(files, entries, index["data_hash"])


def _own_entries() -> Iterator[Entry]:
    for row, offset, num_bytes in _rows(_OWN_FILE):
        tree = json.loads(row)
        yield Entry(
            task_id=f"own/{tree['split']}/{tree['name']}",
            split=tree["split"],
            kind=tree["kind"],
            file=0,
            offset=offset,
            num_bytes=num_bytes,
            has_solution=True,
        )


def _rows(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Non-empty lines, each with its offset and length in bytes."""
    offset = 0
    with path.open("rb") as file:
        for row in file:
            if row.strip():
                yield row, offset, len(row)
            offset += len(row)


def _data_files(path: Path) -> list[Path]:
    if not path.exists():
        raise EnvironmentBrokenError(f"{DATA_VARIABLE} names {path}, which does not exist; set it to a file or folder")
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    if not files:
        raise EnvironmentBrokenError(f"{DATA_VARIABLE} names {path}, which holds no .jsonl file")
    return files


def _cached_index(files: Sequence[Path]) -> dict[str, Any]:
    stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((INDEX_VERSION, stamps)).encode()).hexdigest()[:24]
    folder = default_cache_root(os.environ) / "code"
    path = folder / f"{key}.json"
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        logger.info("indexing problems", extra={"files": [str(file) for file in files]})
    except ValueError:
        logger.warning("the index of problems is cut short and made anew", extra={"path": str(path)})
    index = _make_index(files)
    try:
        write_whole(path, json.dumps(index))
    except DiskError as error:
        hint = "set LONGTURN_CACHE to a folder with space that can be written"
        raise EnvironmentBrokenError(f"the index of problems cannot be kept in {folder}: {error}; {hint}") from error
    return index


def _make_index(files: Sequence[Path]) -> dict[str, Any]:
    content = hashlib.sha256()
    entries: list[dict[str, Any]] = []
    bad: list[str] = []
    counts: dict[str, int] = dict.fromkeys(SPLITS, 0)
    for number, file in enumerate(files):
        split = next((name for name in SPLITS if file.name.startswith(name)), "train")
        for row, offset, num_bytes in _rows(file):
            content.update(row)
            try:
                problem = problem_from_row(_object(row))
            except ValueError as error:
                bad.append(f"{file} at byte {offset}: {error}")
                continue
            entries.append(
                {
                    "task_id": f"data/{split}/{counts[split]:06d}",
                    "split": split,
                    "kind": problem.kind,
                    "file": number,
                    "offset": offset,
                    "num_bytes": num_bytes,
                    "has_solution": problem.solution is not None,
                }
            )
            counts[split] += 1
    for reason in bad[:_SHOWN_BAD_ROWS]:
        logger.warning("row left out", extra={"reason": reason})
    logger.info("problems indexed", extra={"num_problems": len(entries), "num_left_out": len(bad)})
    return {"entries": entries, "data_hash": content.hexdigest()[:16]}


def _object(row: bytes) -> Mapping[str, Any]:
    tree = json.loads(row)
    if not isinstance(tree, dict):
        raise BadProblemError("not a JSON object")
    return tree
