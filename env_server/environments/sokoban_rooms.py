"""Sokoban rooms, solvable by construction: boxes are pulled away from the targets, and pushing them back solves.

All rooms have a wall all round, so a step from a floor cell never leaves the grid.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from env_server.environments.grid import offsets, path, region
from env_server.environments.sokoban_solver import push_distances

TURN_CHANCE = 0.2
SAME_BOX_CHANCE = 0.8
EXTRA_PULLS = 20
"""Per box, where `depth` pulls leave one on a target."""
OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A room as it lies at the start; cells are indices into the flat grid."""

    size: int
    floor: frozenset[int]
    targets: frozenset[int]
    boxes: frozenset[int]
    player: int
    solution: tuple[str, ...]
    """Moves that solve it; rarely the shortest."""

    @property
    def layout(self) -> str:
        """The walls, targets and boxes: rooms that differ only in where the player begins are one layout."""
        parts = (sorted(cells) for cells in (self.floor, self.targets, self.boxes))
        return f"{self.size}:{'|'.join(','.join(map(str, cells)) for cells in parts)}"


def make_room(rng: random.Random, *, size: int, num_boxes: int, depth: int) -> Room | None:
    """The room farthest from solved among those that `depth` pulls go through; None where none has all boxes away.

    Where the pulls leave a box on a target, some more are made, up to the first room that has none there.
    """
    floor = _carve(rng, size, num_boxes)
    pullable = [cell for cell in sorted(floor) if _is_pullable(floor, cell, size)]
    if len(pullable) < num_boxes:
        return None
    targets = rng.sample(pullable, num_boxes)
    walk = _ReverseWalk(floor, targets, rng.choice(sorted(floor.difference(targets))), size)
    best: _Start | None = None
    while walk.pull(rng):
        if walk.is_away and (best is None or walk.distance > best.distance):
            best = _Start(tuple(walk.boxes), walk.player, walk.distance, tuple(walk.pulls))
        if walk.num_pulls >= (depth if best else depth + EXTRA_PULLS * num_boxes):
            break
    if best is None:
        return None
    steps = offsets(size)
    player = rng.choice(sorted(region(best.player, steps.values(), floor.difference(best.boxes))))
    return Room(
        size=size,
        floor=floor,
        targets=frozenset(targets),
        boxes=frozenset(best.boxes),
        player=player,
        solution=tuple(_forward(floor, set(best.boxes), player, best.pulls, steps)),
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a reverse walk has come to."""

    boxes: tuple[int, ...]
    player: int
    distance: int
    pulls: tuple[tuple[int, str], ...]


class _ReverseWalk:
    """Boxes pulled at random, from the solved room on."""

    def __init__(self, floor: frozenset[int], targets: list[int], player: int, size: int) -> None:
        self._floor, self._targets, self._steps = floor, frozenset(targets), offsets(size)
        self._distances = push_distances(floor, self._targets, size)
        self.boxes = list(targets)
        self.player = player
        self.num_pulls = 0
        self.pulls: list[tuple[int, str]] = []
        """Since the room was last solved: where the box stood after a pull, and the direction that pushes it back."""
        self._last: tuple[int, str] | None = None

    @property
    def is_away(self) -> bool:
        """No box is on a target."""
        return self._targets.isdisjoint(self.boxes)

    @property
    def distance(self) -> int:
        """Pushes to the nearest targets, other boxes not counted."""
        return sum(self._distances[box] for box in self.boxes)

    def pull(self, rng: random.Random) -> bool:
        """Pull some box by one cell; False where none can be."""
        options = self._preferred(self._options(), rng)
        if not options:
            return False
        number, direction = rng.choice(options)
        self.boxes[number] += self._steps[direction]
        self.player = self.boxes[number] + self._steps[direction]
        self.num_pulls += 1
        self.pulls.append((self.boxes[number], OPPOSITE[direction]))
        self._last = (number, OPPOSITE[direction])
        if self._targets.issuperset(self.boxes):
            self.pulls.clear()
        return True

    def _preferred(self, options: list[tuple[int, str]], rng: random.Random) -> list[tuple[int, str]]:
        """Not the last pull undone, if there is another; often the same box on, else one that is on a target."""
        last = self._last
        if last is None:
            return options
        options = [option for option in options if option != last] or options
        same = [option for option in options if option[0] == last[0]]
        if same and rng.random() < SAME_BOX_CHANCE:
            return same
        return [option for option in options if self.boxes[option[0]] in self._targets] or options

    def _options(self) -> list[tuple[int, str]]:
        free = self._floor.difference(self.boxes)
        reach = region(self.player, self._steps.values(), free)
        return [
            (number, direction)
            for number, box in enumerate(self.boxes)
            for direction, step in self._steps.items()
            if box + step in reach and box + 2 * step in free
        ]


def _forward(
    floor: frozenset[int],
    boxes: set[int],
    player: int,
    pulls: Sequence[tuple[int, str]],
    steps: Mapping[str, int],
) -> list[str]:
    """The moves that take all pulls back."""
    moves: list[str] = []
    for box, direction in reversed(pulls):
        walk = path(player, box - steps[direction], steps, floor.difference(boxes))
        assert walk is not None, "the player stood on the far side of the box when it was pulled"
        moves += [*walk, direction]
        boxes.remove(box)
        boxes.add(box + steps[direction])
        player = box
    return moves


def _is_pullable(floor: frozenset[int], cell: int, size: int) -> bool:
    """Whether a box there could be pulled some way, were it alone."""
    return any(cell + step in floor and cell + 2 * step in floor for step in offsets(size).values())


def _carve(rng: random.Random, size: int, num_boxes: int) -> frozenset[int]:
    """A connected floor, made by a walk that turns now and then."""
    inner = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    cells = frozenset(inner)
    num_wanted = max(3 * num_boxes + 3, round(rng.uniform(0.6, 0.9) * len(inner)))
    steps = list(offsets(size).values())
    at, step = rng.choice(inner), rng.choice(steps)
    floor = {at}
    while len(floor) < min(num_wanted, len(inner)):
        if rng.random() < TURN_CHANCE or at + step not in cells:
            step = rng.choice(steps)
            continue
        at += step
        floor.add(at)
    return frozenset(floor)
