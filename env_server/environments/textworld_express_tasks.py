"""The tasks of TextWorldExpress: known without a simulator.

A task id is `GAME/PARAMETERS/SPLIT/INDEX`, such as
`coin/locations=11,distractors=0,doors=true,limit=true/train/000123`, or `sorting/train/000123` for a game without
parameters. All parameters are spelled out in the game's order, so a task has exactly one id. The package keeps a
thousand seeds for each split.
"""

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
from env_server.environments.generated_tasks import whole
from longturn.nearest import nearest_hint, nearest_name

_FIRST_SEEDS = {"train": 0, "dev": 10_000, "test": 20_000}
SPLITS = tuple(_FIRST_SEEDS)
NUM_SEEDS = 1000
"""Of each split."""
_LONGEST = 100

# Parameter: what the package calls it.
_PACKAGE_NAMES = {
    "locations": "numLocations",
    "ingredients": "numIngredients",
    "distractors": "numDistractorItems",
    "items": "numItemsToPutAway",
    "distance": "maxDistanceApart",
    "clutter": "maxDistractorItemsPerLocation",
    "doors": "includeDoors",
    "limit": "limitInventorySize",
    "length": "gameLength",
    "decoys": "numDistractors",
    "memory": "memorization",
}


def _house(*, default: bool) -> tuple[KnobSpec, KnobSpec]:
    return (
        switch("doors", "doors are closed at first", default=default),
        switch("limit", "few things can be carried", default=default),
    )


GAMES: Mapping[str, tuple[KnobSpec, ...]] = {
    "cookingworld": (
        whole("locations", 11, 1, 11, "rooms"),
        whole("ingredients", 3, 1, 5, "ingredients of the recipe"),
        whole("distractors", 10, 0, 10, "things that are not needed"),
        *_house(default=True),
    ),
    "twc": (
        whole("locations", 3, 1, 3, "rooms"),
        whole("items", 4, 1, 4, "things to put where they belong"),
        *_house(default=False),
    ),
    "coin": (
        whole("locations", 11, 1, 11, "rooms"),
        whole("distractors", 0, 0, 10, "things that are not needed"),
        *_house(default=True),
    ),
    "mapreader": (
        whole("locations", 15, 2, 40, "rooms"),
        whole("distance", 4, 1, 8, "the coin lies at most so far away"),
        whole("clutter", 3, 0, 3, "at most so many other things in a room"),
        *_house(default=False),
    ),
    "arithmetic": (),
    "sorting": (),
    "simonsays": (
        whole("length", 5, 2, 50, "commands to be followed"),
        whole("decoys", 3, 0, 5, "other actions offered"),
        switch("memory", "all commands are given at the beginning"),
    ),
    "peckingorder": (),
}
_PARAMETERS = {spec.name for parameters in GAMES.values() for spec in parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressTask:
    """One game: its parameters, split and index in the split."""

    game: str
    parameters: Mapping[str, KnobValue]
    split: str
    index: int

    @property
    def kind(self) -> str:
        """The id without split and index."""
        values = ",".join(f"{name}={_text(value)}" for name, value in self.parameters.items())
        return f"{self.game}/{values}" if values else self.game

    @property
    def task_id(self) -> str:
        return f"{self.kind}/{self.split}/{self.index:06d}"

    @property
    def info(self) -> TaskInfo:
        """Its entry in a list."""
        knobs = {"game": self.game, **self.parameters}
        return TaskInfo(task_id=self.task_id, split=self.split, kind=self.game, knobs=knobs, score_max=1.0)

    @property
    def seed(self) -> int:
        """The package's own seed."""
        return _FIRST_SEEDS[self.split] + self.index

    @property
    def package_parameters(self) -> str:
        """The parameters as the package takes them."""
        return ",".join(f"{_PACKAGE_NAMES[name]}={int(value)}" for name, value in self.parameters.items())


def find(task_id: str) -> ExpressTask:
    """Raise `TaskNotFoundError`, naming the nearest valid id, unless the id is valid and in its one spelling."""
    kind, split, index_text = ["", "", *task_id.rsplit("/", 2)][-3:]
    game, _, text = kind.partition("/")
    reason = ""
    if game not in GAMES:
        reason = f"games are {', '.join(GAMES)}"
        game = nearest_name(game[:_LONGEST], GAMES) or "coin"
    parameters, fault = _parse(game, text)
    reason = reason or fault
    if split not in SPLITS:
        reason, split = reason or f"splits are {', '.join(SPLITS)}", "train"
    index = int(index_text) if index_text.isascii() and index_text.isdigit() and len(index_text) <= 9 else -1
    if not 0 <= index < NUM_SEEDS:
        reason, index = reason or f"indices are 000000..{NUM_SEEDS - 1:06d}", 0
    task = ExpressTask(game=game, parameters=parameters, split=split, index=index)
    if reason or task.task_id != task_id:
        raise TaskNotFoundError(task_id, nearest=task.task_id, reason=reason)
    return task


def num_tasks(split: str, filters: Mapping[str, str]) -> int:
    """Raises `KnobError` on an unknown split or filter."""
    if split not in SPLITS:
        raise KnobError("split", f"textworld_express has no split {split!r}; splits are {', '.join(SPLITS)}")
    return NUM_SEEDS * len(_kinds(tuple(sorted(filters.items()))))


def page(split: str, start: int, count: int, filters: Mapping[str, str]) -> list[TaskInfo]:
    """The first game of every kind, then the second, and so on; parameters without filter have their defaults."""
    stop = min(start + count, num_tasks(split, filters))
    kinds = _kinds(tuple(sorted(filters.items())))
    tasks: list[TaskInfo] = []
    for position in range(max(start, 0), stop):
        game, parameters = kinds[position % len(kinds)]
        tasks.append(ExpressTask(game=game, parameters=parameters, split=split, index=position // len(kinds)).info)
    return tasks


@lru_cache(maxsize=64)
def _kinds(filters: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Mapping[str, KnobValue]], ...]:
    wanted = dict(filters)
    game = wanted.pop("game", None)
    if game is not None and game not in GAMES:
        hint = nearest_hint(game[:_LONGEST], GAMES)
        raise KnobError("game", f"filter game is one of {', '.join(GAMES)}; got {game!r}{hint}")
    names = (game,) if game else tuple(GAMES)
    names = tuple(name for name in names if set(wanted) <= {spec.name for spec in GAMES[name]})
    if not names:
        known = ", ".join(sorted(_PARAMETERS))
        raise KnobError(next(iter(wanted)), f"no game has all of {', '.join(wanted)}; filters: game, {known}")
    return tuple((name, _values(name, wanted)) for name in names)


def _values(game: str, wanted: Mapping[str, str]) -> dict[str, KnobValue]:
    return {
        spec.name: spec.validate(wanted[spec.name]) if spec.name in wanted else spec.default for spec in GAMES[game]
    }


def _parse(game: str, text: str) -> tuple[dict[str, KnobValue], str]:
    """The parameters, with defaults where they are missing or wrong, and what is wrong."""
    parts = [part.partition("=") for part in text.split(",")] if text else []
    given = {name: value for name, _, value in parts}
    values: dict[str, KnobValue] = {}
    faults: list[str] = []
    for spec in GAMES[game]:
        values[spec.name] = spec.default
        if spec.name not in given:
            faults.append(f"{spec.name} is missing")
            continue
        try:
            values[spec.name] = spec.validate(given[spec.name][:_LONGEST])
        except KnobError as error:
            faults.append(str(error))
    faults += [f"{game} has no parameter {name[:_LONGEST]!r}" for name in given if name not in values]
    return values, faults[0] if faults else ""


def _text(value: KnobValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
