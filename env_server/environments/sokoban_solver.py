"""Search for the fewest pushes that solve a Sokoban position, with a bound on the positions looked at.

Sets of cells are integers with one bit per cell: a flood fill is then a handful of shifts.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import count

from env_server.environments.grid import offsets, path

State = tuple[int, int]
"""Boxes, and the lowest cell of the region in which the player is, as bits."""
Push = tuple[int, str]
"""The cell of a box and the direction in which it is pushed."""


def push_distances(floor: frozenset[int], targets: frozenset[int], size: int) -> dict[int, int]:
    """For each cell the pushes that a box there needs to a target, other boxes not counted; dead cells are left out."""
    steps = offsets(size).values()
    distances = dict.fromkeys(targets, 0)
    frontier = list(targets)
    while frontier:
        reached: list[int] = []
        for cell in frontier:
            for step in steps:
                pulled = cell + step
                if pulled in floor and pulled + step in floor and pulled not in distances:
                    distances[pulled] = distances[cell] + 1
                    reached.append(pulled)
        frontier = reached
    return distances


class Solver:
    """Solves positions of one room."""

    def __init__(self, *, floor: frozenset[int], targets: frozenset[int], size: int, max_states: int) -> None:
        self._floor, self._size, self._max_states = floor, size, max_states
        self._steps: Mapping[str, int] = offsets(size)
        self._floor_bits, self._goal = _bits(floor), _bits(targets)
        self._distances = push_distances(floor, targets, size)

    def solve(self, boxes: Iterable[int], player: int) -> list[str] | None:
        """Moves with the fewest pushes; None where there are none or the bound is reached first."""
        start = frozenset(boxes)
        if not start <= self._distances.keys():
            return None
        pushes = self._search(_bits(start), player)
        return None if pushes is None else self._moves(start, player, pushes)

    def _search(self, boxes: int, player: int) -> list[Push] | None:
        """Best first by pushes done and the least still to do, so the first solution met has the fewest."""
        first = self._state(boxes, 1 << player)
        costs, came = {first: 0}, dict[State, tuple[State, Push]]()
        order = count()
        queue = [(self._least(boxes), next(order), 0, first)]
        while queue and len(costs) <= self._max_states:
            _, _, cost, state = heappop(queue)
            if cost > costs[state]:
                continue
            if state[0] == self._goal:
                return _pushes(came, state)
            for after, push in self._expand(state):
                if cost + 1 < costs.get(after, cost + 2):
                    costs[after], came[after] = cost + 1, (state, push)
                    heappush(queue, (cost + 1 + self._least(after[0]), next(order), cost + 1, after))
        return None

    def _expand(self, state: State) -> list[tuple[State, Push]]:
        boxes, corner = state
        free = self._floor_bits & ~boxes
        reach = self._flood(corner, free)
        found: list[tuple[State, Push]] = []
        for box in _cells(boxes):
            for direction, step in self._steps.items():
                ahead = box + step
                if reach >> (box - step) & 1 and free >> ahead & 1 and ahead in self._distances:
                    found.append((self._state(boxes ^ (1 << box | 1 << ahead), 1 << box), (box, direction)))
        return found

    def _state(self, boxes: int, player: int) -> State:
        reach = self._flood(player, self._floor_bits & ~boxes)
        return boxes, reach & -reach

    def _flood(self, reach: int, free: int) -> int:
        size = self._size
        while True:
            wider = (reach | reach << 1 | reach >> 1 | reach << size | reach >> size) & free
            if wider == reach:
                return reach
            reach = wider

    def _least(self, boxes: int) -> int:
        return sum(self._distances[box] for box in _cells(boxes))

    def _moves(self, boxes: frozenset[int], player: int, pushes: list[Push]) -> list[str]:
        moves: list[str] = []
        for box, direction in pushes:
            step = self._steps[direction]
            walk = path(player, box - step, self._steps, self._floor - boxes)
            assert walk is not None, "the search pushed from a cell that the player reaches"
            moves += [*walk, direction]
            boxes, player = boxes - {box} | {box + step}, box
        return moves


def _bits(cells: Iterable[int]) -> int:
    return sum(1 << cell for cell in cells)


def _cells(bits: int) -> list[int]:
    cells: list[int] = []
    while bits:
        cells.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return cells


def _pushes(came: Mapping[State, tuple[State, Push]], state: State) -> list[Push]:
    """The pushes from the start to a state."""
    pushes: list[Push] = []
    while state in came:
        state, push = came[state]
        pushes.append(push)
    return pushes[::-1]
