"""The tasks of the ALFWorld environment: games of files where there are any, then generated ones. No game library."""

from collections.abc import Mapping
from dataclasses import dataclass

from env_server.environment import KnobError, TaskInfo, TaskNotFoundError
from env_server.environments.alfworld_files import SPLITS, TASK_TYPES, FileEntry, FileIndex
from env_server.environments.alfworld_generator import MAX_GOALS
from env_server.environments.task_table import TaskKey, TaskTable
from longturn.nearest import nearest_hint, nearest_name

SOURCES = ("file", "generated")
FILTERS = ("source", "type", "goals")
_GENERATED = TaskTable(
    "alfworld",
    {f"generated/goals={number}": {"source": "generated", "goals": number} for number in range(1, MAX_GOALS + 1)},
    {"train": 100_000, "valid_seen": 10_000, "valid_unseen": 10_000},
)
_LONGEST_ID = 200


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Tasks by id and in order."""

    files: FileIndex

    def num_tasks(self, split: str, filters: Mapping[str, str]) -> int:
        """Raises `KnobError` on an unknown split or filter."""
        return len(self._files(split, filters)) + _num_generated(split, filters)

    def tasks(self, split: str, start: int, count: int, filters: Mapping[str, str]) -> list[TaskInfo]:
        """Files in the order of their names, then generated games, going round the numbers of goals."""
        files = self._files(split, filters)
        start, stop = max(start, 0), max(start, 0) + count
        listed = [entry.info for entry in files[start:stop]]
        if _num_generated(split, filters) and stop > len(files):
            first = max(start - len(files), 0)
            listed += _GENERATED.page(split, first, stop - len(files) - first, _generated_filters(filters))
        return listed

    def find(self, task_id: str) -> FileEntry | TaskKey:
        """Raise `TaskNotFoundError`, naming the nearest valid id and what is wrong with a file that was left out."""
        if not task_id.startswith("file/"):
            return _GENERATED.find(task_id)
        entry = self.files.by_id.get(task_id)
        if entry is None:
            reason = self.files.quarantined.get(task_id)
            raise TaskNotFoundError(
                task_id,
                nearest=nearest_name(task_id[:_LONGEST_ID], self.files.by_id),
                reason=f"its game file is quarantined: {reason}" if reason else _no_file(self.files),
            )
        return entry

    def _files(self, split: str, filters: Mapping[str, str]) -> list[FileEntry]:
        if split not in SPLITS:
            raise KnobError("split", f"alfworld has no split {split!r}; splits are {', '.join(SPLITS)}")
        _check_filters(filters)
        if "goals" in filters or filters.get("source") == "generated":
            return []
        wanted = filters.get("type")
        return [entry for entry in self.files.by_split[split] if wanted in (None, entry.task_type)]


def _no_file(files: FileIndex) -> str:
    return "" if files.by_id else "the server has no game files: start it with ALFWORLD_DATA set to their folder"


def _num_generated(split: str, filters: Mapping[str, str]) -> int:
    if "type" in filters or filters.get("source") == "file":
        return 0
    return _GENERATED.num_tasks(split, _generated_filters(filters))


def _generated_filters(filters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in filters.items() if name != "source"}


def _check_filters(filters: Mapping[str, str]) -> None:
    choices = {"source": SOURCES, "type": TASK_TYPES}
    for name, value in filters.items():
        if name not in FILTERS:
            hint = nearest_hint(name, FILTERS)
            raise KnobError(name, f"alfworld has no filter {name!r}{hint}; filters: {', '.join(FILTERS)}")
        if name in choices and value not in choices[name]:
            hint = nearest_hint(value[:_LONGEST_ID], choices[name])
            raise KnobError(name, f"filter {name} is one of {', '.join(choices[name])}; got {value!r}{hint}")
