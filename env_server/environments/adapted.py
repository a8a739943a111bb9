"""What the adapters of other libraries share: each task is a seed of the library, and splits have seeds far apart."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from env_server.environment import TaskInfo
from env_server.environments.episodes import EpisodicEnvironment
from env_server.environments.task_table import TaskKey, TaskTable

SIZES = {"train": 100_000, "valid": 10_000, "test": 10_000}
_FIRST_SEED = {"train": 0, "valid": 1_000_000, "test": 2_000_000}


class AdaptedEnvironment(EpisodicEnvironment):
    """Plays one environment of another library. Ids are `KIND/SPLIT/INDEX`."""

    table: ClassVar[TaskTable]

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return cls.table.num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return cls.table.page(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return cls.table.find(task_id).info


def table_of(environment: str, kind: str) -> TaskTable:
    """The tasks of an environment with one kind of them."""
    return TaskTable(environment, {kind: {}}, SIZES)


def seed_of(key: TaskKey) -> int:
    """The library's seed for a task."""
    return _FIRST_SEED[key.split] + key.index


def first_seed(split: str) -> int:
    """The seed of a split's task 0."""
    return _FIRST_SEED[split]
