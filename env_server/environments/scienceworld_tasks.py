"""ScienceWorld's tasks and variations, and the levels on which papers train and test: known without a simulator.

A task id is `TASK/VARIATION`, such as `boil/12`. The package divides each task's variations in their order: the first
ones are train, then come dev and test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from env_server.environment import KnobError, TaskInfo, TaskNotFoundError
from longturn.nearest import nearest_hint, nearest_name

SPLITS = ("train", "dev", "test")

# Task: variations of train, dev and test, in the order of the package.
_NUM_VARIATIONS: Mapping[str, tuple[int, int, int]] = {
    "boil": (14, 7, 9),
    "change-the-state-of-matter-of": (14, 7, 9),
    "chemistry-mix": (16, 8, 8),
    "chemistry-mix-paint-secondary-color": (18, 9, 9),
    "chemistry-mix-paint-tertiary-color": (18, 9, 9),
    "find-animal": (150, 75, 75),
    "find-living-thing": (150, 75, 75),
    "find-non-living-thing": (150, 75, 75),
    "find-plant": (150, 75, 75),
    "freeze": (14, 7, 9),
    "grow-fruit": (62, 31, 33),
    "grow-plant": (62, 31, 33),
    "identify-life-stages-1": (6, 3, 5),
    "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-determine-angle": (84, 42, 42),
    "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "inclined-plane-friction-unnamed-surfaces": (80, 40, 42),
    "lifespan-longest-lived": (62, 31, 32),
    "lifespan-longest-lived-then-shortest-lived": (62, 31, 32),
    "lifespan-shortest-lived": (62, 31, 32),
    "measure-melting-point-known-substance": (218, 109, 109),
    "measure-melting-point-unknown-substance": (150, 75, 75),
    "melt": (14, 7, 9),
    "mendelian-genetics-known-plant": (60, 30, 30),
    "mendelian-genetics-unknown-plant": (240, 120, 120),
    "power-component": (10, 5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (10, 5, 5),
    "test-conductivity": (450, 225, 225),
    "test-conductivity-of-unknown-substances": (300, 150, 150),
    "use-thermometer": (270, 135, 135),
}
TASKS = tuple(_NUM_VARIATIONS)
NEEDS_WIRES = frozenset(task for task in TASKS if "power-component" in task or "conductivity" in task)
"""Tasks that need electrical actions."""

_LEFT_OUT = frozenset({"use-thermometer"})
"""Of all levels: the papers number their tasks 0 to 28."""
_HELD_OUT = frozenset(TASKS[index] for index in (1, 4, 8, 11, 13, 16, 18, 21, 24, 28))
"""Kinds of task that L2 keeps for its test."""
_LEVELS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "L0": {"train": frozenset(TASKS) - _LEFT_OUT, "dev": frozenset(TASKS) - _LEFT_OUT},
    "L1": {"train": frozenset(TASKS) - _LEFT_OUT, "test": frozenset(TASKS) - _LEFT_OUT},
    "L2": {"train": frozenset(TASKS) - _LEFT_OUT - _HELD_OUT, "test": _HELD_OUT},
}
LEVELS = tuple(_LEVELS)
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Variation:
    """One variation of a task."""

    task: str
    number: int

    @property
    def task_id(self) -> str:
        """`TASK/VARIATION`."""
        return f"{self.task}/{self.number}"

    @property
    def split(self) -> str:
        """Where it belongs."""
        num_train, num_dev, _ = _NUM_VARIATIONS[self.task]
        return "train" if self.number < num_train else "dev" if self.number < num_train + num_dev else "test"

    @property
    def info(self) -> TaskInfo:
        """Its entry in a list."""
        return TaskInfo(task_id=self.task_id, split=self.split, kind=self.task, score_max=100.0)


def find(task_id: str) -> Variation:
    """Raise `TaskNotFoundError`, naming the nearest valid id, unless the id is valid and in its one spelling."""
    task, _, text = task_id.partition("/")
    reason = ""
    if task not in _NUM_VARIATIONS:
        reason = "the first part is one of ScienceWorld's task names"
        task = nearest_name(task[:_LONGEST], TASKS) or TASKS[0]
    total = sum(_NUM_VARIATIONS[task])
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else -1
    if not 0 <= number < total:
        reason, number = reason or f"variations of {task} are 0 to {total - 1}", 0
    variation = Variation(task, number)
    if variation.task_id != task_id:
        raise TaskNotFoundError(task_id, nearest=variation.task_id, reason=reason or "it has another spelling")
    return variation


def listed(split: str, filters: Mapping[str, str]) -> tuple[Variation, ...]:
    """The first variation of every task, then the second of every task, and so on. `KnobError` on a bad filter."""
    if split not in SPLITS:
        raise KnobError("split", f"scienceworld has no split {split!r}; splits are {', '.join(SPLITS)}")
    unknown = next((name for name in filters if name not in ("task", "level")), None)
    if unknown is not None:
        raise KnobError(unknown, f"scienceworld has no filter {unknown!r}; filters: level, task")
    task = _one_of(filters, "task", TASKS)
    level = _one_of(filters, "level", LEVELS)
    if level is not None and split not in _LEVELS[level]:
        used = " and ".join(_LEVELS[level])
        raise KnobError("level", f"level {level} has the splits {used}; got split {split}")
    return _listed(split, task, level)


def _one_of(filters: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    wanted = filters.get(name)
    if wanted is not None and wanted not in choices:
        hint = nearest_hint(wanted[:_LONGEST], choices)
        raise KnobError(name, f"filter {name} is one of {', '.join(choices)}; got {wanted!r}{hint}")
    return wanted


@cache
def _listed(split: str, task: str | None, level: str | None) -> tuple[Variation, ...]:
    tasks = [name for name in TASKS if task in (None, name) and (level is None or name in _LEVELS[level][split])]
    ranked = [
        (rank, index, Variation(name, number))
        for index, name in enumerate(tasks)
        for rank, number in enumerate(_numbers(name, split))
    ]
    return tuple(variation for _, _, variation in sorted(ranked, key=lambda entry: entry[:2]))


def _numbers(task: str, split: str) -> range:
    position = SPLITS.index(split)
    sizes = _NUM_VARIATIONS[task]
    first = sum(sizes[:position])
    return range(first, first + sizes[position])
