"""The tasks of the TextWorld environment: their ids, their order, their seeds. Imports no game library.

A task id is `FAMILY/PARAMETERS/SPLIT/INDEX`, for example `coin_collector/level=116/train/000123`. All parameters are
spelled out in the family's order, so a task has exactly one id. The seeds of a game are a hash of its id.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from env_server.environment import (
    KnobError,
    KnobSpec,
    KnobValue,
    TaskInfo,
    TaskNotFoundError,
    switch,
)
from longturn.nearest import nearest_hint, nearest_name

TEXTWORLD_VERSION = "1.7.0"
GENERATOR_VERSION = 1
"""Rises whenever a task id may give another game."""

NUM_TASKS_PER_KIND = {"train": 100_000, "valid": 10_000, "test": 10_000}
SPLITS = tuple(NUM_TASKS_PER_KIND)
SEED_NAMES = ("map", "objects", "quest", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of generated game and the parameters of its generator."""

    name: str
    parameters: tuple[KnobSpec, ...]
    listed: Mapping[str, tuple[KnobValue, ...]]
    """The values that `ListTasks` walks through; other values in range are valid in an id too."""

    def check(self, values: Mapping[str, KnobValue]) -> str:
        """Why these values, each in its range, do not go together; empty where they do."""
        match self.name:
            case "coin_collector" if _num_coin_rooms(values["level"]) > 100:
                return "more than 100 rooms do not fit: levels are 1..150 and 201..233"
            case "cooking" if int(values["take"]) > int(values["recipe"]):
                return "take must be at most recipe"
            case _:
                return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWorldTask:
    """One game: family, generator parameters, split and index in the split."""

    family: Family
    parameters: Mapping[str, KnobValue]
    split: str
    index: int

    @property
    def parameter_text(self) -> str:
        return ",".join(f"{name}={_text(value)}" for name, value in self.parameters.items())

    @property
    def task_id(self) -> str:
        return f"{self.family.name}/{self.parameter_text}/{self.split}/{self.index:06d}"

    @property
    def kind(self) -> str:
        """`coin_collector/116`, `treasure_hunter/5`; the parameters in full for the other families."""
        level = self.parameters.get("level")
        return f"{self.family.name}/{self.parameter_text if level is None else level}"

    @property
    def info(self) -> TaskInfo:
        return TaskInfo(
            task_id=self.task_id,
            split=self.split,
            kind=self.kind,
            knobs={"family": self.family.name, **self.parameters},
            score_max=1.0 if "level" in self.parameters or self.parameters.get("rewards") == "sparse" else None,
        )

    def seeds(self, attempt: int) -> dict[str, int]:
        """The generator's four 32-bit seeds; a later attempt is made where the earlier game was not usable."""
        text = f"textworld|{GENERATOR_VERSION}|{self.task_id}|{attempt}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return {name: int.from_bytes(digest[4 * i : 4 * i + 4], "little") for i, name in enumerate(SEED_NAMES)}


def _int(name: str, default: int, minimum: int, maximum: int, description: str) -> KnobSpec:
    return KnobSpec(name=name, kind="int", default=default, minimum=minimum, maximum=maximum, description=description)


def _choice(name: str, default: str, choices: tuple[str, ...], description: str) -> KnobSpec:
    return KnobSpec(name=name, kind="choice", default=default, choices=choices, description=description)


_BOTH: tuple[KnobValue, ...] = (False, True)

FAMILIES = {
    family.name: family
    for family in (
        Family(
            name="coin_collector",
            parameters=(
                _int("level", 116, 1, 233, "L: a corridor of L rooms; 100+L, 200+L: with 1, 2 dead ends a room"),
            ),
            listed={"level": (*range(1, 151), *range(201, 234))},
        ),
        Family(
            name="treasure_hunter",
            parameters=(_int("level", 10, 1, 30, "1-10 five rooms, 11-20 ten and doors, 21-30 twenty and keys"),),
            listed={"level": tuple(range(1, 31))},
        ),
        Family(
            name="cooking",
            parameters=(
                _int("recipe", 3, 1, 5, "ingredients of the recipe"),
                _int("take", 3, 0, 5, "ingredients to find, at most recipe"),
                _choice("go", "6", ("1", "6", "9", "12"), "number of rooms"),
                switch("open", "doors and containers are closed", default=True),
                switch("cook", "ingredients need cooking", default=True),
                switch("cut", "ingredients need cutting", default=True),
                switch("drop", "the inventory is limited", default=True),
            ),
            listed={
                "recipe": tuple(range(1, 6)),
                "take": tuple(range(6)),
                "go": ("1", "6", "9", "12"),
                "open": _BOTH,
                "cook": _BOTH,
                "cut": _BOTH,
                "drop": _BOTH,
            },
        ),
        Family(
            name="simple",
            parameters=(
                _choice("rewards", "dense", ("dense", "balanced", "sparse"), "how often points are given"),
                _choice("goal", "brief", ("detailed", "brief", "none"), "what the introduction tells"),
            ),
            listed={"rewards": ("dense", "balanced", "sparse"), "goal": ("detailed", "brief", "none")},
        ),
        Family(
            name="quest",
            parameters=(
                _int("length", 40, 2, 120, "the command list has at least so many commands"),
                _int("rooms", 10, 2, 30, "number of rooms"),
            ),
            listed={"length": (10, 20, 30, 40, 50, 60, 80, 100), "rooms": (6, 10, 16)},
        ),
    )
}


def parse_task_id(task_id: str) -> TextWorldTask:
    """Raise `TaskNotFoundError`, naming the nearest valid id, unless the id is valid and in its one spelling."""
    family_name, parameter_text, split, index_text = (*task_id.split("/"), "", "", "", "")[:4]
    family = FAMILIES.get(family_name)
    if family is None:
        fallback = FAMILIES[nearest_name(family_name, FAMILIES) or "coin_collector"]
        raise TaskNotFoundError(task_id, nearest=_default_id(fallback), reason=f"families are {', '.join(FAMILIES)}")
    parameters, reason = _parse_parameters(family, parameter_text)
    if split not in SPLITS:
        reason, split = reason or f"splits are {', '.join(SPLITS)}", "train"
    index = int(index_text) if index_text.isascii() and index_text.isdigit() and len(index_text) <= 9 else -1
    if not 0 <= index < NUM_TASKS_PER_KIND[split]:
        reason, index = reason or f"indices of {split} are 000000..{NUM_TASKS_PER_KIND[split] - 1:06d}", 0
    task = TextWorldTask(family=family, parameters=parameters, split=split, index=index)
    if reason or task.task_id != task_id:
        raise TaskNotFoundError(task_id, nearest=task.task_id, reason=reason)
    return task


def num_tasks(split: str, filters: Mapping[str, str]) -> int:
    """Raises `KnobError` on an unknown split or filter."""
    _check_split(split)
    return len(_kinds(tuple(sorted(filters.items())))) * NUM_TASKS_PER_KIND[split]


def list_tasks(split: str, start: int, count: int, filters: Mapping[str, str]) -> list[TaskInfo]:
    """Kinds in catalogue order, each with all its indices before the next."""
    kinds = _kinds(tuple(sorted(filters.items())))
    per_kind = NUM_TASKS_PER_KIND[split] if start < num_tasks(split, filters) else 1
    stop = min(start + count, num_tasks(split, filters))
    tasks: list[TaskInfo] = []
    for position in range(max(start, 0), stop):
        family, parameters = kinds[position // per_kind]
        task = TextWorldTask(family=family, parameters=parameters, split=split, index=position % per_kind)
        tasks.append(task.info)
    return tasks


@lru_cache(maxsize=64)
def _kinds(filters: tuple[tuple[str, str], ...]) -> tuple[tuple[Family, Mapping[str, KnobValue]], ...]:
    wanted = dict(filters)
    family_name = wanted.pop("family", None)
    if family_name is not None and family_name not in FAMILIES:
        raise KnobError("family", f"no family {family_name!r}{nearest_hint(family_name, FAMILIES)}")
    families = [FAMILIES[family_name]] if family_name else list(FAMILIES.values())
    families = [family for family in families if set(wanted) <= {spec.name for spec in family.parameters}]
    if not families:
        names = sorted({spec.name for family in FAMILIES.values() for spec in family.parameters})
        raise KnobError(
            next(iter(wanted)), f"no family has all of {sorted(wanted)}; filters: family, {', '.join(names)}"
        )
    return tuple((family, values) for family in families for values in _combinations(family, wanted))


def _combinations(family: Family, wanted: Mapping[str, str]) -> list[dict[str, KnobValue]]:
    axes = [
        (spec.validate(wanted[spec.name]),) if spec.name in wanted else family.listed[spec.name]
        for spec in family.parameters
    ]
    names = [spec.name for spec in family.parameters]
    every = [dict(zip(names, values, strict=True)) for values in itertools.product(*axes)]
    return [values for values in every if not family.check(values)]


def _parse_parameters(family: Family, text: str) -> tuple[dict[str, KnobValue], str]:
    """The parameters, defaults where the text does not give a valid value, and what is wrong with the text."""
    given = {name: value for name, _, value in (part.partition("=") for part in text.split(",") if part)}
    values: dict[str, KnobValue] = {}
    reason = ""
    for spec in family.parameters:
        try:
            values[spec.name] = spec.validate(given[spec.name])
        except KeyError:
            values[spec.name], reason = spec.default, reason or f"parameter {spec.name} is missing"
        except KnobError as error:
            values[spec.name], reason = spec.default, reason or str(error)
    mismatch = family.check(values)
    if mismatch:
        values = {spec.name: spec.default for spec in family.parameters}
    return values, reason or mismatch


def _default_id(family: Family) -> str:
    values = {spec.name: spec.default for spec in family.parameters}
    return TextWorldTask(family=family, parameters=values, split="train", index=0).task_id


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise KnobError("split", f"textworld has no split {split!r}; splits are {', '.join(SPLITS)}")


def _text(value: KnobValue) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _num_coin_rooms(level: KnobValue) -> int:
    return ((int(level) - 1) // 100 + 1) * ((int(level) - 1) % 100 + 1)
