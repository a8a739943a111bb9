"""A room as an expert sees it: where everything is and in what state, told apart from text and simulator."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from env_server.environments.alfworld_goals import STATES

Fact = tuple[str, tuple[str, ...]]
"""Predicate and arguments, in lower case."""

APPLIANCE_OF = {"clean": "sinkbasin", "hot": "microwave", "cool": "fridge"}
"""Receptacle type that brings an object into a state."""
ABILITY_OF = {"clean": "cleanable", "hot": "heatable", "cool": "coolable"}
OPPOSITE_OF = {"hot": "cool", "cool": "hot"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receptacle:
    """A place for objects."""

    type: str
    location: str
    is_closed: bool


@dataclass(slots=True, kw_only=True)
class Thing:
    """An object."""

    type: str
    receptacle: str | None = None
    """None while it is held or nowhere."""
    traits: set[str] = field(default_factory=set[str])
    """Abilities (`pickupable`, `heatable`, ...), states (`clean`, `hot`, `cool`) and `toggled`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that an expert plans with."""

    location: str
    held: str | None
    receptacles: Mapping[str, Receptacle]
    things: Mapping[str, Thing]
    can_contain: frozenset[tuple[str, str]]
    """(receptacle type, object type)."""

    def fits(self, thing: str, receptacle: str) -> bool:
        """Whether the thing may be put into the receptacle."""
        return (self.receptacles[receptacle].type, self.things[thing].type) in self.can_contain


_TRAIT_OF = {name: name for name in ("pickupable", "cleanable", "heatable", "coolable", "toggleable")} | {
    "istoggled": "toggled",
    **STATES,
}


def world_from_facts(facts: Iterable[Fact]) -> World:
    """The world that the facts of a state describe; receptacles that stand nowhere are left out."""
    known: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for predicate, arguments in facts:
        known[predicate].append(arguments)
    places = {words[0]: words[1] for words in known["receptacleatlocation"]}
    closed = {words[0] for words in known["openable"]} - {words[0] for words in known["opened"]}
    things = {name: Thing(type=_plain(kind)) for name, kind in sorted(known["objecttype"])}
    for name, receptacle in sorted(known["inreceptacle"]):  # a few published games have a thing in two places
        if name in things:
            things[name].receptacle = receptacle
    held = next((words[1] for words in known["holds"]), None)
    if held in things:
        things[held].receptacle = None
    for predicate, trait in _TRAIT_OF.items():
        for (name,) in known[predicate]:
            if name in things:
                things[name].traits.add(trait)
    return World(
        location=next((words[1] for words in known["atlocation"]), ""),
        held=held,
        receptacles={
            name: Receptacle(type=_plain(kind), location=places[name], is_closed=name in closed)
            for name, kind in sorted(known["receptacletype"])
            if name in places
        },
        things=things,
        can_contain=frozenset((_plain(place), _plain(thing)) for place, thing in known["cancontain"]),
    )


def _plain(type_name: str) -> str:
    return type_name.removesuffix("type")
