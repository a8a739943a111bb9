"""Our own games in ALFWorld's format: a furnished room, several goals, and the shortest way to them.

A game is fixed by its task id alone. One room holds everything, as in ALFWorld; the number of goals makes a game long:
a goal takes four to eight actions, so five goals take thirty. Splits are told apart by what a game is made of: the
rooms of `valid_unseen` have layouts that no other split has and its tasks ask for other objects; `valid_seen` has the
layouts and objects of `train`, in combinations that `train` never asks for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from env_server.environment import EnvironmentBrokenError
from env_server.environments.alfworld_goals import GoalPart, Held, Lit, Placed, parse_goal
from env_server.environments.alfworld_names import command_of, names_of
from env_server.environments.alfworld_planner import Act, Planner
from env_server.environments.alfworld_rooms import (
    HELD_OUT,
    LAMP,
    LAMP_PLACES,
    OBJECTS,
    OPENABLE,
    ROOMS,
    STATE_APPLIANCES,
    Kind,
)
from env_server.environments.alfworld_translation import Game, cached
from env_server.environments.alfworld_world import World, world_from_facts
from env_server.environments.digests import Draws, number_of

GENERATOR_VERSION = 1
"""Rises whenever a task id may give another game."""
MAX_GOALS = 8
_MAX_DRAWS = 2000
_UNSEEN_LAYOUTS = 4
"""One layout of so many is kept for valid_unseen."""
_SEEN_COMBINATIONS = 8
"""One combination of layout and goals of so many is kept for valid_seen."""
_ABILITY = {"clean": "cleanable", "hot": "heatable", "cool": "coolable"}
_STATE_PREDICATE = {"clean": "isClean", "hot": "isHot", "cool": "isCool"}
_NUM_SCENERY = (8, 18)
_START = "loc_bar_0_bar_0_bar_0_bar_0"
"""The middle of the room, where nothing stands."""


@dataclass(frozen=True, slots=True)
class Item:
    """A receptacle or an object: its PDDL name and where it stands or lies."""

    name: str
    type: str
    place: str
    """Location of a receptacle, receptacle of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One thing to do."""

    verb: str
    """`place`, `two`, `clean`, `hot`, `cool` or `look`."""
    object_type: str
    receptacle_type: str
    """The lamp's type for `look`."""

    @property
    def parts(self) -> tuple[GoalPart, ...]:
        thing, place = self.object_type.lower(), self.receptacle_type.lower()
        if self.verb == "look":
            return (Lit(object_type=place), Held(object_type=thing))
        state = self.verb if self.verb in _ABILITY else ""
        return (Placed(object_type=thing, receptacle_type=place, state=state, count=2 if self.verb == "two" else 1),)

    @property
    def sentence(self) -> str:
        thing, place = self.object_type.lower(), self.receptacle_type.lower()
        match self.verb:
            case "look":
                return f"examine the {thing} with the {place}"
            case "two":
                return f"put two {thing} in {place}"
            case "place":
                return f"put some {thing} in {place}"
            case _:
                return f"put a {self.verb} {thing} in {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A furnished room."""

    kind: str
    receptacles: tuple[Item, ...]
    objects: tuple[Item, ...]

    @property
    def layout(self) -> str:
        """What furniture there is."""
        counts = Counter(item.type for item in self.receptacles)
        return f"{self.kind} {' '.join(f'{name}={count}' for name, count in sorted(counts.items()))}"


def generated_game(task_id: str, split: str, num_goals: int) -> Game:
    """The game of a task, from the cache or made now. Needs the alfworld package for its domain and grammar."""
    data = package_data()
    domain, grammar = ((data / f"alfred.{suffix}").read_text(encoding="utf-8") for suffix in ("pddl", "twl2"))
    key = f"{number_of(f'{GENERATOR_VERSION}|{domain}|{task_id}'):016x}"
    made = cached("generated", key, lambda: _make(task_id, split, num_goals))
    return Game(
        domain=_with_goals(domain, made["goals"]),
        grammar=grammar.replace("UNKNOWN GOAL", made["task"]),
        problem=made["problem"],
        walkthrough=tuple(made["walkthrough"]),
    )


def package_data() -> Path:
    """The alfworld package's folder of domain and grammar; ModuleNotFoundError where it is not installed.

    The package is not imported: it would set ALFWORLD_DATA to a folder of its own choice.
    """
    found = find_spec("alfworld")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'alfworld'", name="alfworld")
    return Path(found.submodule_search_locations[0]) / "data"


def draw_task(task_id: str, split: str, num_goals: int) -> tuple[Room, tuple[Goal, ...], list[Act]]:
    """The room, goals and shortest plan of a task: the first draw that belongs to the split and can be solved."""
    for attempt in range(_MAX_DRAWS):
        draws = Draws(f"alfworld|{GENERATOR_VERSION}|{task_id}|{attempt}")
        made = _draw(draws, split, num_goals)
        if made is not None and split_of(*made) == split:
            plan = Planner([part for goal in made[1] for part in goal.parts], world_of(made[0])).plan()
            if plan:
                return *made, plan
    raise EnvironmentBrokenError(f"{task_id}: the generator gave nothing usable in {_MAX_DRAWS} draws")


def split_of(room: Room, goals: Sequence[Goal]) -> str:
    """The split that a game may be in; empty where it may be in none."""
    is_unseen_room = number_of(room.layout) % _UNSEEN_LAYOUTS == 0
    asked = {goal.object_type for goal in goals}
    if is_unseen_room:
        return "valid_unseen" if asked <= HELD_OUT else ""
    if asked & HELD_OUT:
        return ""
    combination = f"{room.layout} {sorted(goal.sentence for goal in goals)}"
    return "valid_seen" if number_of(combination) % _SEEN_COMBINATIONS == 0 else "train"


def world_of(room: Room) -> World:
    """The room as the planner sees it."""
    return world_from_facts((name.lower(), tuple(word.lower() for word in words)) for name, words in _facts(room))


def _make(task_id: str, split: str, num_goals: int) -> dict[str, Any]:
    room, goals, plan = draw_task(task_id, split, num_goals)
    texts = [text for goal in goals for text in _goal_texts(goal)]
    problem = "\n".join(_problem(room, len(texts), number_of(task_id)))
    parts = tuple(part for goal in goals for part in goal.parts)
    names = names_of({word.lower() for _, words in _facts(room) for word in words})
    if parse_goal(_with_goals("(define)", texts), problem) != parts:
        raise EnvironmentBrokenError(f"{task_id}: the goal does not read back as it was meant")
    return {
        "problem": problem,
        "goals": texts,
        "task": _sentence(goals),
        "walkthrough": [command_of(act, names) for act in plan],
    }


def _with_goals(domain: str, goals: Sequence[str]) -> str:
    """The domain with a derived predicate for every goal.

    The translator turns a conjunction of "there is ..." into one rule over all their variables, whose instances
    multiply with every goal; a rule of its own for each keeps them few.
    """
    rules = (f"(:derived ({_goal_name(number)}) {text})" for number, text in enumerate(goals, start=1))
    predicates = " ".join(f"({_goal_name(number)})" for number in range(1, len(goals) + 1))
    body = domain.rstrip().removesuffix(")").replace("(:predicates", f"(:predicates {predicates}", 1)
    return "\n".join((body, *rules, ")"))


def _goal_name(number: int) -> str:
    return f"goal{number}reached"


def _sentence(goals: Sequence[Goal]) -> str:
    *first, last = (goal.sentence for goal in goals)
    return f"{', '.join(first)}, and {last}" if first else last


def _draw(draws: Draws, split: str, num_goals: int) -> tuple[Room, tuple[Goal, ...]] | None:
    kind = draws.pick(sorted(ROOMS))
    receptacles = _furnish(draws, kind)
    wanted = [item for item in OBJECTS[kind] if (item.name in HELD_OUT) == (split == "valid_unseen")]
    goals: list[Goal] = []
    for item in draws.sample(wanted, num_goals):
        can_look = kind in ("bedroom", "livingroom") and all(goal.verb != "look" for goal in goals)
        goal = _goal(draws, item, {receptacle.type for receptacle in receptacles}, can_look=can_look)
        if goal is None:
            return None
        goals.append(goal)
    if len(goals) < num_goals:
        return None
    goals.sort(key=lambda goal: goal.verb == "look")  # its last act leaves the hands full
    objects = tuple(_scatter(draws, kind, receptacles, goals))
    return Room(kind=kind, receptacles=receptacles, objects=objects), tuple(goals)


def _furnish(draws: Draws, kind: str) -> tuple[Item, ...]:
    receptacles: list[Item] = []
    for name, (fewest, most) in ROOMS[kind].items():
        for _ in range(draws.between(fewest, most)):
            number = len(receptacles) + 1
            location = f"loc_bar_{number}_bar_{draws.below(10)}_bar_{draws.below(4)}_bar_30"
            receptacles.append(Item(_receptacle_name(draws, name, number), name, location))
    return tuple(receptacles)


def _receptacle_name(draws: Draws, name: str, number: int) -> str:
    if name.endswith("Basin"):
        return f"{_coordinates(draws, name.removesuffix('Basin'), number)}_bar_{name}"
    return _coordinates(draws, name, number)


def _coordinates(draws: Draws, name: str, number: int) -> str:
    """A name that no other thing has: the number is in it."""
    return f"{name}_bar__plus_{draws.below(100):02d}_dot_{number:02d}_bar__plus_00_dot_{draws.below(100):02d}"


def _goal(draws: Draws, item: Kind, furniture: set[str], *, can_look: bool) -> Goal | None:
    """Something to do with an object of this type; None where the room has no place for it."""
    places = sorted(item.places & furniture)
    states = sorted(state for state in item.abilities if STATE_APPLIANCES[state] in furniture)
    verbs = ["place", "two", *states, *states, *(["look"] if can_look and furniture & {*LAMP_PLACES} else [])]
    verb = draws.pick(verbs)
    if verb == "look":
        return Goal(verb=verb, object_type=item.name, receptacle_type=LAMP)
    # At least one other place must be left for it to lie in at the start.
    if len(places) < 2:
        return None
    return Goal(verb=verb, object_type=item.name, receptacle_type=draws.pick(places))


def _scatter(draws: Draws, kind: str, receptacles: Sequence[Item], goals: Sequence[Goal]) -> Iterator[Item]:
    """Objects in places, none where a goal wants it."""
    target = {goal.object_type: goal for goal in goals}
    needed = [name for name, goal in target.items() for _ in range(draws.between(1, 2) + (goal.verb == "two"))]
    scenery = [item.name for item in OBJECTS[kind] if item.name not in target]
    names = needed + [draws.pick(scenery) for _ in range(draws.between(*_NUM_SCENERY))]
    kinds = {item.name: item for item in OBJECTS[kind]}
    number = len(receptacles)
    for name in names:
        goal = target.get(name)
        spots = [item for item in receptacles if item.type in kinds[name].places
                 and (goal is None or item.type != goal.receptacle_type)]  # fmt: skip
        if spots:
            number += 1
            yield Item(_coordinates(draws, name, number), name, draws.pick(spots).name)
    lamp_places = [item for item in receptacles if item.type in LAMP_PLACES]
    if lamp_places and (any(goal.verb == "look" for goal in goals) or draws.happens(0.5)):
        yield Item(_coordinates(draws, LAMP, number + 1), LAMP, draws.pick(lamp_places).name)


def _facts(room: Room) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The room in PDDL's words."""
    locations = {item.name: item.place for item in room.receptacles}
    kinds: Mapping[str, Kind] = {item.name: item for item in OBJECTS[room.kind]}
    furniture = {item.type for item in room.receptacles}
    yield "atLocation", ("agent1", _START)
    for item in room.receptacles:
        yield "receptacleType", (item.name, f"{item.type}Type")
        yield "receptacleAtLocation", (item.name, item.place)
        if item.type in OPENABLE:
            yield "openable", (item.name,)
    for name in sorted({item.type for item in room.objects} - {LAMP}):
        for place in sorted(kinds[name].places & furniture):
            yield "canContain", (f"{place}Type", f"{name}Type")
    for item in room.objects:
        yield "objectType", (item.name, f"{item.type}Type")
        yield "inReceptacle", (item.name, item.place)
        yield "objectAtLocation", (item.name, locations[item.place])
        if item.type == LAMP:
            yield "toggleable", (item.name,)
            continue
        yield "pickupable", (item.name,)
        for state in sorted(kinds[item.type].abilities):
            yield _ABILITY[state], (item.name,)


def _problem(room: Room, num_goals: int, number: int) -> Iterator[str]:
    facts = list(_facts(room))
    typed: dict[str, set[str]] = {
        "agent": {"agent1"},
        "otype": {f"{item.type}Type" for item in room.objects},
        "rtype": {f"{item.type}Type" for item in room.receptacles},
        "object": {item.name for item in room.objects},
        "receptacle": {item.name for item in room.receptacles},
        "location": {_START, *(item.place for item in room.receptacles)},
    }
    # The domain names these types in its actions, whatever the room has.
    typed["rtype"] |= {f"{name}Type" for name in STATE_APPLIANCES.values()}
    typed["otype"] |= {"KnifeType", "ButterKnifeType"}
    yield f"(define (problem plan_generated_{number:016x})"
    yield "(:domain alfred)"
    yield "(:objects"
    for kind, names in typed.items():
        yield from (f"  {name} - {kind}" for name in sorted(names))
    yield ")"
    yield "(:init"
    yield from (f"  ({name} {' '.join(words)})" for name, words in facts)
    yield ")"
    yield f"(:goal (and {' '.join(f'({_goal_name(goal)})' for goal in range(1, num_goals + 1))})))"


def _goal_texts(goal: Goal) -> Iterator[str]:
    kind, place = f"{goal.object_type}Type", f"{goal.receptacle_type}Type"
    if goal.verb == "look":
        yield (
            f"(exists (?lamp - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?lamp {place})"
            " (toggleable ?lamp) (isToggled ?lamp) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)"
            " (inReceptacle ?lamp ?r)))"
        )
        yield f"(exists (?o - object ?a - agent) (and (objectType ?o {kind}) (holds ?a ?o)))"
        return
    first = f"(objectType ?o {kind}) (receptacleType ?r {place}) (inReceptacle ?o ?r)"
    if goal.verb in _ABILITY:
        first += f" ({_ABILITY[goal.verb]} ?o) ({_STATE_PREDICATE[goal.verb]} ?o)"
    if goal.verb == "two":
        first += (
            f" (exists (?other - object) (and (not (= ?o ?other)) (objectType ?other {kind})"
            f" (receptacleType ?r {place}) (inReceptacle ?other ?r)))"
        )
    yield f"(exists (?r - receptacle) (exists (?o - object) (and {first})))"
