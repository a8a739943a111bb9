"""Task ids of the form `KIND/SPLIT/INDEX`, such as `generated/steps=4/train/000123`, and how they are listed.

Every kind has the same number of tasks in a split. Listings go round the kinds, so that any part of one is a mixture.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from env_server.environment import KnobError, KnobValue, TaskInfo, TaskNotFoundError
from longturn.nearest import nearest_hint, nearest_name

SPLITS = ("train", "valid", "test")
_LONGEST_KIND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """A task id taken apart."""

    kind: str
    knobs: Mapping[str, KnobValue]
    """What the kind fixes."""
    split: str
    index: int

    @property
    def task_id(self) -> str:
        return f"{self.kind}/{self.split}/{self.index:06d}"

    @property
    def info(self) -> TaskInfo:
        return TaskInfo(task_id=self.task_id, split=self.split, kind=self.kind, knobs=self.knobs, score_max=1.0)


class TaskTable:
    """The tasks of one environment. `kinds` gives what each kind fixes, `sizes` the tasks of a kind in each split."""

    def __init__(
        self, environment: str, kinds: Mapping[str, Mapping[str, KnobValue]], sizes: Mapping[str, int]
    ) -> None:
        self._environment = environment
        self._kinds = kinds
        self._sizes = sizes

    def num_tasks(self, split: str, filters: Mapping[str, str]) -> int:
        """Raises `KnobError` on an unknown split or filter."""
        if split not in self._sizes:
            raise KnobError("split", f"{self._environment} has no split {split!r}; splits are {', '.join(self._sizes)}")
        return len(self._kinds_with(filters)) * self._sizes[split]

    def page(self, split: str, start: int, count: int, filters: Mapping[str, str]) -> list[TaskInfo]:
        """The first task of every kind, then the second of every kind, and so on."""
        stop = min(start + count, self.num_tasks(split, filters))
        kinds = self._kinds_with(filters)
        return [
            self._key(kinds[position % len(kinds)], split, position // len(kinds)).info
            for position in range(max(start, 0), stop)
        ]

    def find(self, task_id: str) -> TaskKey:
        """Raise `TaskNotFoundError`, naming the nearest valid id, unless the id is valid and in its one spelling."""
        kind, split, index_text = ["", "", *task_id.rsplit("/", 2)][-3:]
        reason = ""
        if kind not in self._kinds:
            reason = f"kinds are {', '.join(self._kinds)}"
            kind = nearest_name(kind[:_LONGEST_KIND], self._kinds) or next(iter(self._kinds))
        if not self._sizes.get(split):
            splits = [name for name, size in self._sizes.items() if size]
            reason, split = reason or f"splits are {', '.join(splits)}", splits[0]
        is_number = index_text.isascii() and index_text.isdigit() and len(index_text) <= 9
        index = int(index_text) if is_number else -1
        if not 0 <= index < self._sizes[split]:
            reason, index = reason or f"indices of {split} are 000000..{self._sizes[split] - 1:06d}", 0
        key = self._key(kind, split, index)
        if reason or key.task_id != task_id:
            raise TaskNotFoundError(task_id, nearest=key.task_id, reason=reason)
        return key

    def _key(self, kind: str, split: str, index: int) -> TaskKey:
        return TaskKey(kind=kind, knobs=self._kinds[kind], split=split, index=index)

    def _kinds_with(self, filters: Mapping[str, str]) -> list[str]:
        kinds = list(self._kinds)
        for name, wanted in filters.items():
            values = {kind: str(knobs[name]) for kind, knobs in self._kinds.items() if name in knobs}
            if not values:
                names = sorted({name for knobs in self._kinds.values() for name in knobs})
                raise KnobError(
                    name, f"{self._environment} has no filter {name!r}; filters: {', '.join(names) or 'none'}"
                )
            if wanted not in values.values():
                choices = list(dict.fromkeys(values.values()))
                hint = nearest_hint(wanted[:_LONGEST_KIND], choices)
                raise KnobError(name, f"filter {name} is one of {', '.join(choices)}; got {wanted!r}{hint}")
            kinds = [kind for kind in kinds if values.get(kind) == wanted]
        return kinds
