"""Worlds around an explicit command list, so that a quest may be of any length.

TextWorld's own quest search explodes beyond about fifteen actions. Here the plan comes first: a random tree of rooms
with doors, one supporter or container a room, and deliveries ("take the red ball from the oak table", four rooms,
"insert the red ball into the tin chest") until the command list is long enough. Each delivery is a quest of one point.
"""

# Upstream's annotations ask for a list where it takes one entity.
# pyright: reportArgumentType=false

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from numpy.random import RandomState
from textworld import Game, GameMaker, GameOptions
from textworld.generator.game import Event, Quest

_STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}

# fmt: off
_ROOMS = (
    "kitchen", "pantry", "scullery", "cellar", "hall", "study", "library", "parlour", "attic", "nursery",
    "bedroom", "bathroom", "laundry", "workshop", "garage", "studio", "gallery", "chapel", "armoury", "vault",
    "greenhouse", "conservatory", "observatory", "ballroom", "dining-room", "stable", "barn", "shed",
    "courtyard", "garden",
)
_MATERIALS = ("oak", "pine", "elm", "tin", "iron", "brass", "marble", "wicker", "bamboo", "copper")
_SUPPORTERS = ("table", "shelf", "bench")
_CONTAINERS = ("chest", "locker", "cabinet")
_COLOURS = ("red", "blue", "green", "yellow", "white", "black", "purple", "orange")
_THINGS = (
    "ball", "cup", "book", "hat", "candle", "ribbon", "whistle", "die", "coin", "spoon", "vase", "bell",
    "glove", "mask", "kite",
)
_DOORS = ("narrow", "wide", "painted", "carved", "squeaky", "plain")
# fmt: on

_DOOR_PROBABILITY = 0.3
_LOOSE_PROBABILITY = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Take a thing from its room and put it on or into a holder in another room."""

    thing: str
    source_room: int
    is_loose: bool
    """It lies on the floor; otherwise on or in its room's holder."""
    target_room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestPlan:
    """A world and the commands that solve it."""

    rooms: tuple[str, ...]
    """The player starts in the first."""
    corridors: Mapping[tuple[int, str], int]
    """(room, direction) to room, both ways."""
    doors: Mapping[frozenset[int], str]
    """Two neighbouring rooms to the name of the closed door between them."""
    holders: tuple[str, ...]
    is_container: tuple[bool, ...]
    deliveries: tuple[Delivery, ...]
    commands: tuple[str, ...]
    layout: str

    @property
    def goal(self) -> str:
        """The deliveries, without rooms or directions."""
        parts = [f"the {item.thing} {self.preposition(item.target_room)} the {self.holders[item.target_room]}"
                 for item in self.deliveries]  # fmt: skip
        return f"Your task: put {'; '.join(parts)}."

    def preposition(self, room: int) -> str:
        return "into" if self.is_container[room] else "on"


@dataclass(slots=True)
class _Walk:
    """The command list under construction and the state it leaves behind."""

    corridors: Mapping[tuple[int, str], int]
    closed_doors: dict[frozenset[int], str]
    closed_holders: dict[int, str]
    room: int = 0
    commands: list[str] = field(default_factory=list[str])

    def go_to(self, target: int) -> None:
        for direction, room in _path(self.corridors, self.room, target):
            door = self.closed_doors.pop(frozenset((self.room, room)), None)
            if door is not None:
                self.commands.append(f"open {door}")
            self.commands.append(f"go {direction}")
            self.room = room

    def open_holder(self) -> None:
        holder = self.closed_holders.pop(self.room, None)
        if holder is not None:
            self.commands.append(f"open {holder}")


def plan_quest(*, length: int, num_rooms: int, seeds: Mapping[str, int]) -> QuestPlan:
    """A plan of `num_rooms` rooms whose command list has at least `length` commands; a function of the seeds."""
    map_rng, object_rng, quest_rng = (RandomState(seeds[name]) for name in ("map", "objects", "quest"))
    corridors, layout = _grow_tree(num_rooms, map_rng)
    doors = dict(_place_doors(corridors, map_rng))
    is_container = tuple(bool(value) for value in object_rng.randint(0, 2, size=num_rooms))
    holders = tuple(_name_holders(is_container, object_rng))
    walk = _Walk(
        corridors=corridors,
        closed_doors=dict(doors),
        closed_holders={room: holders[room] for room in range(num_rooms) if is_container[room]},
    )
    things = [f"{colour} {thing}" for colour in _COLOURS for thing in _THINGS]
    object_rng.shuffle(things)
    deliveries: list[Delivery] = []
    while len(walk.commands) < length:
        source, target = (int(room) for room in quest_rng.choice(num_rooms, size=2, replace=False))
        is_loose = bool(quest_rng.rand() < _LOOSE_PROBABILITY)
        delivery = Delivery(thing=things.pop(), source_room=source, is_loose=is_loose, target_room=target)
        _deliver(delivery, walk, holders, is_container)
        deliveries.append(delivery)
    return QuestPlan(
        rooms=tuple(str(name) for name in map_rng.permutation(_ROOMS)[:num_rooms]),
        corridors=corridors,
        doors=doors,
        holders=holders,
        is_container=is_container,
        deliveries=tuple(deliveries),
        commands=tuple(walk.commands),
        layout=layout,
    )


def build_quest(plan: QuestPlan, options: GameOptions) -> Game:
    """The plan as a TextWorld game: one point a delivery, won when all are made."""
    maker = GameMaker(options)
    rooms = [maker.new_room(name) for name in plan.rooms]
    for (room, direction), neighbour in plan.corridors.items():
        if room < neighbour:
            path = maker.connect(rooms[room].exits[direction], rooms[neighbour].exits[_OPPOSITE[direction]])
            door = plan.doors.get(frozenset((room, neighbour)))
            if door is not None:
                maker.new_door(path, name=door).add_property("closed")
    maker.set_player(rooms[0])
    holders = [maker.new(type="c" if closes else "s", name=name)
               for name, closes in zip(plan.holders, plan.is_container, strict=True)]  # fmt: skip
    for room, holder, closes in zip(rooms, holders, plan.is_container, strict=True):
        room.add(holder)
        if closes:
            holder.add_property("closed")
    for delivery in plan.deliveries:
        thing = maker.new(type="o", name=delivery.thing)
        (rooms if delivery.is_loose else holders)[delivery.source_room].add(thing)
        relation = "in" if plan.is_container[delivery.target_room] else "on"
        placed = maker.new_fact(relation, thing, holders[delivery.target_room])
        maker.quests.append(Quest(win_events=[Event(conditions={placed})]))
    maker.set_walkthrough(list(plan.commands))
    game = maker.build()
    game.metadata["walkthrough"] = list(plan.commands)
    game.objective = plan.goal
    return game


def _deliver(delivery: Delivery, walk: _Walk, holders: Sequence[str], is_container: Sequence[bool]) -> None:
    walk.go_to(delivery.source_room)
    if delivery.is_loose:
        walk.commands.append(f"take {delivery.thing}")
    else:
        walk.open_holder()
        walk.commands.append(f"take {delivery.thing} from {holders[delivery.source_room]}")
    walk.go_to(delivery.target_room)
    walk.open_holder()
    verb, preposition = ("insert", "into") if is_container[delivery.target_room] else ("put", "on")
    walk.commands.append(f"{verb} {delivery.thing} {preposition} {holders[delivery.target_room]}")


def _grow_tree(num_rooms: int, rng: RandomState) -> tuple[dict[tuple[int, str], int], str]:
    """A random tree on the grid, room 0 at the origin, and its key."""
    places = [(0, 0)]
    corridors: dict[tuple[int, str], int] = {}
    while len(places) < num_rooms:
        room = int(rng.randint(len(places)))
        direction = str(rng.choice(list(_STEPS)))
        place = (places[room][0] + _STEPS[direction][0], places[room][1] + _STEPS[direction][1])
        if place not in places:
            corridors[room, direction] = len(places)
            corridors[len(places), _OPPOSITE[direction]] = room
            places.append(place)
    edges = {tuple(sorted((places[room], places[other]))) for (room, _), other in corridors.items()}
    return corridors, " ".join(f"{a},{b}-{c},{d}" for (a, b), (c, d) in sorted(edges))


def _place_doors(corridors: Mapping[tuple[int, str], int], rng: RandomState) -> Iterator[tuple[frozenset[int], str]]:
    names = (
        [f"{kind} door" for kind in _DOORS] + [f"{kind} gate" for kind in _DOORS] + [f"{kind} hatch" for kind in _DOORS]
    )
    rng.shuffle(names)
    for (room, _), other in corridors.items():
        if room < other and names and rng.rand() < _DOOR_PROBABILITY:
            yield frozenset((room, other)), names.pop()


def _name_holders(is_container: Sequence[bool], rng: RandomState) -> Iterator[str]:
    free = {closes: [f"{material} {noun}" for material in _MATERIALS for noun in nouns]
            for closes, nouns in ((True, _CONTAINERS), (False, _SUPPORTERS))}  # fmt: skip
    for names in free.values():
        rng.shuffle(names)
    for closes in is_container:
        yield free[closes].pop()


def _path(corridors: Mapping[tuple[int, str], int], start: int, target: int) -> list[tuple[str, int]]:
    """The way in the tree as (direction, next room)."""
    ways: dict[int, list[tuple[str, int]]] = {start: []}
    frontier = [start]
    while target not in ways:
        room = frontier.pop(0)
        for direction in _STEPS:
            other = corridors.get((room, direction))
            if other is not None and other not in ways:
                ways[other] = [*ways[room], (direction, other)]
                frontier.append(other)
    return ways[target]
