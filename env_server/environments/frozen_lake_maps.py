"""Frozen lakes: maps, the published rule of movement, and the moves that win for certain.

Movement is that of Gymnasium's FrozenLake-v1: a move off the edge stays; on slippery ice a move goes to either side of
the intended direction with equal chances. There the chance to slip is 2/3; here it is a parameter.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

DIRECTIONS = ("left", "down", "right", "up")
"""In Gymnasium's order: the neighbours of a direction in this circle are the ones it may slip to."""

_STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a move may lead."""

    probability: float
    cell: int


@dataclass(frozen=True)
class Lake:
    """A map: the start is the first cell, the goal the last; cells are `row * size + column`."""

    size: int
    holes: frozenset[int]
    slip: float

    @property
    def goal(self) -> int:
        return self.size**2 - 1

    @property
    def layout(self) -> str:
        """The map without the chance to slip."""
        return f"{self.size}:{sorted(self.holes)}"

    def is_end(self, cell: int) -> bool:
        """Whether the game ends there."""
        return cell == self.goal or cell in self.holes

    def neighbour(self, cell: int, direction: str) -> int:
        """The next cell in a direction; the same one at the edge."""
        return _neighbours(self.size)[cell][DIRECTIONS.index(direction)]

    def outcomes(self, cell: int, direction: str) -> list[Outcome]:
        """What a move may lead to: slipped to one side, as intended, slipped to the other side."""
        at, neighbours = DIRECTIONS.index(direction), _neighbours(self.size)[cell]
        chances = ((at - 1, self.slip / 2), (at, 1 - self.slip), (at + 1, self.slip / 2))
        return [Outcome(probability, neighbours[turned % 4]) for turned, probability in chances if probability > 0]

    def distances(self) -> dict[int, int]:
        """Steps to the goal around the holes, from every cell that has a way."""
        neighbours = _neighbours(self.size)
        distances, frontier = {self.goal: 0}, [self.goal]
        for cell in frontier:  # grows while it is read
            for neighbour in neighbours[cell]:
                if neighbour not in distances and neighbour not in self.holes:
                    distances[neighbour] = distances[cell] + 1
                    frontier.append(neighbour)
        return distances

    @cached_property
    def sure_moves(self) -> Mapping[int, str]:
        """The first move of the shortest way on which no slip leads into a hole, nor off all such ways.

        Only cells that have one are listed; whoever keeps to these moves reaches the goal sooner or later.
        """
        sure = set(range(self.size**2)) - self.holes
        while True:
            moves = self._ways_within(sure)
            if len(moves) + 1 == len(sure):
                return moves
            sure = {self.goal, *moves}

    def _ways_within(self, sure: set[int]) -> dict[int, str]:
        """Shortest ways of moves whose outcomes all lie in a set that holds the goal."""
        neighbours, slips = _neighbours(self.size), self.slip > 0
        moves: dict[int, str] = {}
        frontier = [self.goal]
        for cell in frontier:  # grows while it is read
            for at, direction in enumerate(DIRECTIONS):
                before = neighbours[cell][at - 2]
                if before == cell or before not in sure or before in moves or before == self.goal:
                    continue
                sides = neighbours[before][at - 1], neighbours[before][at - 3]
                if not slips or (sides[0] in sure and sides[1] in sure):
                    moves[before] = direction
                    frontier.append(before)
        return moves


@lru_cache(maxsize=16)
def _neighbours(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell the next one in each of `DIRECTIONS`."""

    def neighbour(cell: int, down: int, right: int) -> int:
        row, column = cell // size + down, cell % size + right
        return row * size + column if 0 <= row < size and 0 <= column < size else cell

    return tuple(tuple(neighbour(cell, *step) for step in _STEPS) for cell in range(size**2))


def make_lake(rng: random.Random, *, size: int, frozen: float, slip: float) -> Lake:
    """Each cell is a hole with chance `1 - frozen`, unless no sure way to the goal would be left."""
    candidates = [cell for cell in range(1, size**2 - 1) if rng.random() >= frozen]
    rng.shuffle(candidates)
    lake = Lake(size, frozenset(candidates), slip)
    if 0 in lake.sure_moves:
        return lake
    lake = Lake(size, frozenset(), slip)
    for cell in candidates:
        with_hole = Lake(size, lake.holes | {cell}, slip)
        if 0 in with_hole.sure_moves:
            lake = with_hole
    return lake
