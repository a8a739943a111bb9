"""A short way to an ALFWorld goal, with full knowledge of the room.

The agent carries one thing at a time and every place is one move away, so a shortest plan is a sequence of errands:
fetch a thing, bring it into its state where one is asked for, put it down. The search is over errands: A*, exact within
`max_nodes`, then a beam that finds a plan in any room that has one.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from env_server.environments.alfworld_goals import GoalPart, Held, Lit, Placed
from env_server.environments.alfworld_world import ABILITY_OF, APPLIANCE_OF, OPPOSITE_OF, World

MAX_NODES = 1500
BEAM_WIDTH = 40

Act = tuple[str, ...]
"""`go R`, `open R`, `take O R`, `put O R`, `clean O R`, `heat O R`, `cool O R` or `use O`, in the names of a world."""

_VERB_OF = {"clean": "clean", "hot": "heat", "cool": "cool"}
_BIT_OF = {"": 0, "clean": 1, "hot": 2, "cool": 4}
_NOWHERE = -1


class Position(NamedTuple):
    """Where a plan stands. Places and things are indices of the planner's lists."""

    location: str
    held: int
    """`_NOWHERE` where the hands are empty."""
    where: tuple[int, ...]
    """Receptacle of every thing; `_NOWHERE` for the held one."""
    states: tuple[int, ...]
    """States of every thing, as bits."""
    opened: int
    """Receptacles opened by the plan, as bits."""
    has_lit: bool


Errand = tuple[tuple[Act, ...], Position]
"""Acts and the position after them."""


@dataclass(frozen=True, slots=True)
class _Option:
    """An errand as the floor counts it: acts without opening, and what may have to be opened."""

    cost: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A `Placed` part in the planner's indices."""

    things: tuple[int, ...]
    receptacles: frozenset[int]
    """All of the wanted type."""
    targets: tuple[int, ...]
    """Those of them worth considering: of several that nothing tells apart the first."""
    state: str
    count: int


class Planner:
    """Plans for some goal parts in one world."""

    def __init__(self, goal: Sequence[GoalPart], world: World, *, max_nodes: int = MAX_NODES) -> None:
        self._world = world
        self._max_nodes = max_nodes
        self._places = list(world.receptacles)
        self._location = [world.receptacles[name].location for name in self._places]
        self._is_closed = [world.receptacles[name].is_closed for name in self._places]
        self._held_type = next((part.object_type for part in goal if isinstance(part, Held)), None)
        self._lamp_type = next((part.object_type for part in goal if isinstance(part, Lit)), None)
        placed = [part for part in goal if isinstance(part, Placed)]
        self._things = self._relevant_things(placed)
        self._lamps = [
            name
            for name, thing in world.things.items()
            if thing.type == self._lamp_type and "toggleable" in thing.traits and thing.receptacle in world.receptacles
        ]
        self._start = self._first_position()
        candidates = [self._candidates(part) for part in placed]
        special = self._special_locations(placed, candidates)
        self._parts = [
            self._part(part, things, special) for part, things in zip(placed, candidates, strict=True)
        ]  # fmt: skip
        self._options = [list(self._cheap_errands(part)) for part in self._parts]
        self._shares = self._count_shares()

    @property
    def floor(self) -> int:
        """No plan has fewer acts."""
        return self._floor(self._start)

    def plan(self) -> list[Act] | None:
        """The acts of a plan, a shortest one within the bound; empty at the goal, None where no way is known."""
        start = self._start
        queue: list[tuple[int, int, int, Position, tuple[Act, ...]]] = [(self._floor(start), 0, 0, start, ())]
        best: dict[Position, int] = {start: 0}
        order = itertools.count(1)
        for _ in range(self._max_nodes):
            if not queue:
                return None
            _, _, cost, position, acts = heapq.heappop(queue)
            if self._is_goal(position):
                return list(acts)
            if best[position] < cost:
                continue
            for more, after in self._errands(position):
                total = cost + len(more)
                if total < best.get(after, total + 1):
                    best[after] = total
                    heapq.heappush(queue, (total + self._floor(after), -next(order), total, after, (*acts, *more)))
        return self._beam()

    def _beam(self) -> list[Act] | None:
        level: dict[Position, tuple[Act, ...]] = {self._start: ()}
        found: tuple[Act, ...] | None = None
        # A sensible plan has one errand per thing, a thing dropped first, and two for a lamp.
        for _ in range(sum(part.count for part in self._parts) + 4):
            after_level: dict[Position, tuple[Act, ...]] = {}
            for position, acts in level.items():
                if self._is_goal(position):
                    found = acts if found is None or len(acts) < len(found) else found
                    continue
                for more, after in self._errands(position):
                    known = after_level.get(after)
                    if known is None or len(acts) + len(more) < len(known):
                        after_level[after] = (*acts, *more)
            costs = {position: len(acts) + self._floor(position) for position, acts in after_level.items()}
            bound = math.inf if found is None else len(found)
            kept = sorted((position for position in costs if costs[position] < bound), key=lambda item: costs[item])
            level = {position: after_level[position] for position in kept[:BEAM_WIDTH]}
        return None if found is None else list(found)

    # What there is to work with.

    def _relevant_things(self, placed: Sequence[Placed]) -> list[str]:
        types = {part.object_type for part in placed} | {self._held_type}
        world = self._world
        return [
            name
            for name, thing in world.things.items()
            if name == world.held
            or (thing.type in types and "pickupable" in thing.traits and thing.receptacle in world.receptacles)
        ]

    def _first_position(self) -> Position:
        world = self._world
        inside = [world.things[name].receptacle for name in self._things]
        return Position(
            location=world.location,
            held=self._things.index(world.held) if world.held in self._things else _NOWHERE,
            where=tuple(_NOWHERE if name is None else self._places.index(name) for name in inside),
            states=tuple(
                sum(bit for state, bit in _BIT_OF.items() if state in world.things[name].traits)
                for name in self._things
            ),
            opened=0,
            has_lit=False,
        )

    def _candidates(self, part: Placed) -> list[int]:
        ability = ABILITY_OF.get(part.state)
        things = [self._world.things[name] for name in self._things]
        return [
            index
            for index, thing in enumerate(things)
            if thing.type == part.object_type and (ability is None or ability in thing.traits)
        ]

    def _special_locations(self, placed: Sequence[Placed], candidates: Sequence[Sequence[int]]) -> set[str]:
        """Where an errand may begin or stop, so that ending one there saves a move."""
        sources = {self._start.where[index] for indices in candidates for index in indices} - {_NOWHERE}
        appliances = {place for part in placed if part.state for place in self._appliances(part.state)}
        return {self._location[place] for place in sources | appliances} | {self._start.location}

    def _part(self, part: Placed, things: Sequence[int], special: set[str]) -> _Part:
        num_at = Counter(self._location)
        kept: dict[object, int] = {}
        every = [
            place
            for place, name in enumerate(self._places)
            if self._world.receptacles[name].type == part.receptacle_type
        ]
        for place in every:
            location = self._location[place]
            is_one_of_many = location not in special and num_at[location] == 1
            kept.setdefault(self._is_closed[place] if is_one_of_many else (place,), place)
        return _Part(tuple(things), frozenset(every), tuple(kept.values()), part.state, part.count)

    def _appliances(self, state: str) -> list[int]:
        kind = APPLIANCE_OF[state]
        return [place for place, name in enumerate(self._places) if self._world.receptacles[name].type == kind]

    def _fits(self, thing: int, place: int) -> bool:
        return self._world.fits(self._things[thing], self._places[place])

    # Positions.

    def _num_missing(self, part: _Part, position: Position) -> int:
        bit = _BIT_OF[part.state]
        full = Counter(
            position.where[thing]
            for thing in part.things
            if position.where[thing] in part.receptacles and position.states[thing] & bit == bit
        )
        return max(0, part.count - max(full.values(), default=0))

    def _is_goal(self, position: Position) -> bool:
        is_placed = not any(self._num_missing(part, position) for part in self._parts)
        return is_placed and self._is_held(position) and self._is_lit(position)

    def _is_held(self, position: Position) -> bool:
        if self._held_type is None:
            return True
        return position.held != _NOWHERE and self._world.things[self._things[position.held]].type == self._held_type

    def _is_lit(self, position: Position) -> bool:
        return self._lamp_type is None or any(
            self._is_on(lamp, position) and self._lamp_location(lamp) == position.location for lamp in self._lamps
        )

    def _is_on(self, lamp: str, position: Position) -> bool:
        return position.has_lit or "toggled" in self._world.things[lamp].traits

    def _lamp_location(self, lamp: str) -> str:
        return self._location[self._lamp_place(lamp)]

    def _lamp_place(self, lamp: str) -> int:
        return self._places.index(self._world.things[lamp].receptacle or "")

    # Errands.

    def _errands(self, position: Position) -> Iterator[Errand]:
        missing = [part for part in self._parts if self._num_missing(part, position)]
        for part in missing:
            yield from self._deliveries(part, position)
        if not missing:
            yield from self._last_errands(position)
        if position is self._start and position.held != _NOWHERE:
            for place in range(len(self._places)):
                if self._fits(position.held, place):
                    yield self._put(position.held, place, ((), position))

    def _deliveries(self, part: _Part, position: Position) -> Iterator[Errand]:
        bit = _BIT_OF[part.state]
        # Beside the representatives, where things of this part lie already.
        targets = {*part.targets, *(position.where[thing] for thing in part.things)} & part.receptacles
        for thing in part.things:
            if position.held not in (_NOWHERE, thing):
                continue
            has_state = position.states[thing] & bit == bit
            for target in sorted(targets):
                if (position.where[thing] != target or not has_state) and self._fits(thing, target):
                    yield from self._delivery(thing, target, part.state, position)

    def _delivery(self, thing: int, target: int, state: str, position: Position) -> Iterator[Errand]:
        fetched = self._fetch(thing, position)
        bit = _BIT_OF[state]
        if position.states[thing] & bit == bit:
            yield self._put(thing, target, fetched)
            return
        for place in self._appliances(state):
            acts, there = self._go(place, fetched)
            states = list(there.states)
            states[thing] = states[thing] & ~_BIT_OF[OPPOSITE_OF.get(state, "")] | bit
            acts = (*acts, (_VERB_OF[state], self._things[thing], self._places[place]))
            yield self._put(thing, target, (acts, there._replace(states=tuple(states))))

    def _last_errands(self, position: Position) -> Iterator[Errand]:
        if not self._is_held(position):
            for thing, name in enumerate(self._things):
                if self._world.things[name].type == self._held_type and position.held == _NOWHERE:
                    yield self._fetch(thing, position)
        elif not self._is_lit(position):
            for lamp in self._lamps:
                acts, there = self._go(self._lamp_place(lamp), ((), position))
                use: tuple[Act, ...] = () if self._is_on(lamp, position) else (("use", lamp),)
                yield (*acts, *use), there._replace(has_lit=True)

    def _fetch(self, thing: int, position: Position) -> Errand:
        place = position.where[thing]
        if place == _NOWHERE:
            return (), position
        acts, there = self._open(place, self._go(place, ((), position)))
        where = (*there.where[:thing], _NOWHERE, *there.where[thing + 1 :])
        act = ("take", self._things[thing], self._places[place])
        return (*acts, act), there._replace(held=thing, where=where)

    def _put(self, thing: int, place: int, errand: Errand) -> Errand:
        acts, there = self._open(place, self._go(place, errand))
        where = (*there.where[:thing], place, *there.where[thing + 1 :])
        act = ("put", self._things[thing], self._places[place])
        return (*acts, act), there._replace(held=_NOWHERE, where=where)

    def _go(self, place: int, errand: Errand) -> Errand:
        acts, position = errand
        if self._location[place] == position.location:
            return errand
        return (*acts, ("go", self._places[place])), position._replace(location=self._location[place])

    def _open(self, place: int, errand: Errand) -> Errand:
        acts, position = errand
        if not self._is_closed[place] or position.opened >> place & 1:
            return errand
        return (*acts, ("open", self._places[place])), position._replace(opened=position.opened | 1 << place)

    # A floor under what is still ahead.

    def _cheap_errands(self, part: _Part) -> Iterator[_Option]:
        """Errands of a part with what another errand may have spared: the first move, and opening."""
        start = self._start
        ends = {self._location[place] for other in self._parts for place in other.targets} | {start.location}
        if start.held != _NOWHERE:
            ends |= set(self._location)  # where it may be dropped
        for thing in part.things:
            source = start.where[thing]
            begin = None if source == _NOWHERE else self._location[source]
            fetch = 1 if begin is None or begin in ends else 2
            bit = _BIT_OF[part.state]
            stops = [None] if start.states[thing] & bit == bit else self._appliances(part.state)
            for target, stop in itertools.product(part.targets, stops):
                end = self._location[target]
                moves = _num_moves(begin, None if stop is None else self._location[stop], end)
                yield _Option(fetch + moves + 1, source, target)

    def _count_shares(self) -> list[int]:
        """For every receptacle, how many errands may share the one act of opening it."""
        shares = [0] * len(self._places)
        for part, options in zip(self._parts, self._options, strict=True):
            for place in {place for option in options for place in (option.source, option.target)} - {_NOWHERE}:
                shares[place] += part.count
        return shares

    def _floor(self, position: Position) -> int:
        total = 0.0
        for part, options in zip(self._parts, self._options, strict=True):
            missing = self._num_missing(part, position)
            if missing:
                cheapest = (
                    option.cost + self._opening(option.source, position) + self._opening(option.target, position)
                    for option in options
                )
                total += missing * min(cheapest, default=0)
        if position.held != _NOWHERE:
            total -= 2
        total += not self._is_held(position)
        total += self._lamp_type is not None and not position.has_lit and not self._is_lit(position)
        return max(0, math.ceil(total - 1e-9))

    def _opening(self, place: int, position: Position) -> float:
        if place == _NOWHERE or not self._is_closed[place] or position.opened >> place & 1:
            return 0.0
        return 1 / self._shares[place]


def _num_moves(begin: str | None, stop: str | None, end: str) -> int:
    """Moves of a carried thing, and the act at the stop."""
    if stop is None:
        return int(begin is not None and begin != end)
    return int(begin is not None and begin != stop) + int(stop != end) + 1
