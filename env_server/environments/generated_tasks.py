"""Tasks that a generator makes: their ids, their order, their random numbers, and the rule that keeps splits apart.

A task id is `NAME/PARAMETERS/SPLIT/INDEX`, for example `sokoban/size=7,boxes=2,depth=20/train/000123`. All parameters
are spelled out in the generator's order, so a task has exactly one id, and the id alone fixes what is generated.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from env_server.environment import (
    EnvironmentBrokenError,
    KnobError,
    KnobSpec,
    KnobValue,
    TaskInfo,
    TaskNotFoundError,
)
from longturn.nearest import nearest_hint

NUM_TASKS_PER_KIND = {"train": 100_000, "valid": 10_000, "test": 10_000}
SPLITS = tuple(NUM_TASKS_PER_KIND)
MAX_DRAWS = 2000
"""A generator that gives nothing usable in so many draws is broken."""

# One quarter of all layouts each for valid and test.
_SPLIT_OF_QUARTER = ("train", "train", "valid", "test")

T = TypeVar("T")


def _always_fits(values: Mapping[str, KnobValue]) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """What a generator can be asked for."""

    name: str
    version: int
    """Rises whenever a task id may give something else."""
    parameters: tuple[KnobSpec, ...]
    listed: Mapping[str, tuple[KnobValue, ...]]
    """The values that `ListTasks` walks through, the default first; other values in range are valid in an id too."""
    mismatch: Callable[[Mapping[str, KnobValue]], str] = _always_fits
    """Why values, each in its range, do not go together; empty where they do."""

    def __post_init__(self) -> None:
        for spec in self.parameters:
            if self.listed[spec.name][0] != spec.default:
                raise ValueError(f"{self.name}: parameter {spec.name} must be listed with its default first")

    @property
    def data_hash(self) -> str:
        return f"{self.name}-generator-{self.version}"

    def num_tasks(self, split: str, filters: Mapping[str, str]) -> int:
        """Raises `KnobError` on an unknown split or filter."""
        self._check_split(split)
        return len(self._kinds(filters)) * NUM_TASKS_PER_KIND[split]

    def tasks(self, split: str, start: int, count: int, filters: Mapping[str, str]) -> list[TaskInfo]:
        """Kinds in a fixed order, the default one first, each with all its indices before the next."""
        self._check_split(split)
        kinds, per_kind = self._kinds(filters), NUM_TASKS_PER_KIND[split]
        positions = range(max(start, 0), min(start + count, len(kinds) * per_kind))
        return [self._task(kinds[at // per_kind], split, at % per_kind).info for at in positions]

    def task(self, task_id: str) -> "GeneratedTask":
        """Raise `TaskNotFoundError`, naming the nearest valid id, unless the id is valid and in its one spelling."""
        name, parameter_text, split, index_text = (*task_id.split("/"), "", "", "", "")[:4]
        values, reason = self._parse_parameters(parameter_text)
        if name != self.name:
            reason = f"ids begin with {self.name}/"
        if split not in SPLITS:
            reason, split = reason or f"splits are {', '.join(SPLITS)}", "train"
        index = int(index_text) if index_text.isascii() and index_text.isdigit() and len(index_text) <= 9 else -1
        if not 0 <= index < NUM_TASKS_PER_KIND[split]:
            reason, index = reason or f"indices of {split} are 000000..{NUM_TASKS_PER_KIND[split] - 1:06d}", 0
        task = self._task(values, split, index)
        if reason or task.task_id != task_id:
            raise TaskNotFoundError(task_id, nearest=task.task_id, reason=reason)
        return task

    def _task(self, values: Mapping[str, KnobValue], split: str, index: int) -> "GeneratedTask":
        return GeneratedTask(generator=self, parameters=values, split=split, index=index)

    def _parse_parameters(self, text: str) -> tuple[dict[str, KnobValue], str]:
        """The parameters, defaults where the text does not give a valid value, and what is wrong with the text."""
        given = {name: value for name, _, value in (part.partition("=") for part in text.split(",") if part)}
        values: dict[str, KnobValue] = {}
        reason = ""
        for spec in self.parameters:
            try:
                values[spec.name] = spec.validate(given[spec.name])
            except KeyError:
                values[spec.name], reason = spec.default, reason or f"parameter {spec.name} is missing"
            except KnobError as error:
                values[spec.name], reason = spec.default, reason or str(error)
        mismatch = self.mismatch(values)
        if mismatch:
            values = {spec.name: spec.default for spec in self.parameters}
        return values, reason or mismatch

    def _kinds(self, filters: Mapping[str, str]) -> list[dict[str, KnobValue]]:
        names = [spec.name for spec in self.parameters]
        for name in filters:
            if name not in names:
                hint = nearest_hint(name, names)
                raise KnobError(name, f"{self.name} has no filter {name!r}{hint}; filters: {', '.join(names)}")
        axes = [
            (spec.validate(filters[spec.name]),) if spec.name in filters else self.listed[spec.name]
            for spec in self.parameters
        ]
        every = [dict(zip(names, values, strict=True)) for values in itertools.product(*axes)]
        return [values for values in every if not self.mismatch(values)]

    def _check_split(self, split: str) -> None:
        if split not in SPLITS:
            raise KnobError("split", f"{self.name} has no split {split!r}; splits are {', '.join(SPLITS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask:
    """One task: its generator, parameters, split and index in the split."""

    generator: Generator
    parameters: Mapping[str, KnobValue]
    split: str
    index: int

    @property
    def kind(self) -> str:
        """`sokoban/size=7,boxes=2,depth=20`."""
        return f"{self.generator.name}/{','.join(f'{name}={value}' for name, value in self.parameters.items())}"

    @property
    def task_id(self) -> str:
        return f"{self.kind}/{self.split}/{self.index:06d}"

    @property
    def info(self) -> TaskInfo:
        return TaskInfo(
            task_id=self.task_id, split=self.split, kind=self.kind, knobs=dict(self.parameters), score_max=1.0
        )

    def integer(self, name: str) -> int:
        """The value of an integer parameter."""
        return int(self.parameters[name])

    def draw(self, make: Callable[[Random], T | None], layout: Callable[[T], str]) -> T:
        """The first made thing whose layout belongs to the task's split; `make` gives None where a draw failed."""
        for attempt in range(MAX_DRAWS):
            made = make(self.random(attempt))
            if made is not None and split_of_layout(layout(made)) == self.split:
                return made
        raise EnvironmentBrokenError(f"{self.task_id}: the generator gave nothing usable in {MAX_DRAWS} draws")

    def random(self, part: object = 0) -> Random:
        """The random numbers that a part of the task is made of."""
        return private_random(self.generator.data_hash, self.task_id, part)

    def chance(self, seed: int) -> Random:
        """The random numbers of an episode: what the task leaves to chance."""
        return private_random(self.generator.data_hash, self.task_id, "episode", seed)


def split_of_layout(layout: str) -> str:
    """Every layout belongs to one split, by its hash: tasks of different splits never share one."""
    return _SPLIT_OF_QUARTER[hashlib.blake2b(layout.encode(), digest_size=1).digest()[0] % 4]


def private_random(*parts: object) -> Random:
    """Random numbers fixed by the parts and shared with nobody."""
    text = "|".join(map(str, parts))
    return Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))


def whole(name: str, default: int, minimum: int, maximum: int, description: str) -> KnobSpec:
    """An integer parameter."""
    return KnobSpec(name=name, kind="int", default=default, minimum=minimum, maximum=maximum, description=description)


def fraction(name: str, default: float, minimum: float, maximum: float, description: str) -> KnobSpec:
    """A parameter that is no integer."""
    return KnobSpec(name=name, kind="float", default=default, minimum=minimum, maximum=maximum, description=description)


def choice(name: str, choices: Sequence[str], description: str) -> KnobSpec:
    """A parameter with named values, the first one by default."""
    return KnobSpec(name=name, kind="choice", default=choices[0], choices=tuple(choices), description=description)
