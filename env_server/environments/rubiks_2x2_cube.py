"""The 2x2x2 cube as 24 stickers, its quarter turns, and a solver.

Turns are derived from the geometry: a sticker is a corner of the cube and the direction in which it faces; a turn
rotates the four corners of a face. Axes: x to the right, y up, z towards the viewer.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter

Cube = tuple[str, ...]
"""The colour of each sticker, face after face in the order of `FACES`, each in reading order."""
Vector = tuple[int, int, int]

# Of each face the direction it faces, and what is right and down on it as one looks at it.
FACES: Mapping[str, tuple[Vector, Vector, Vector]] = {
    "U": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "L": ((-1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "F": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "R": ((1, 0, 0), (0, 0, -1), (0, -1, 0)),
    "B": ((0, 0, -1), (-1, 0, 0), (0, -1, 0)),
    "D": ((0, -1, 0), (1, 0, 0), (0, 0, -1)),
}
COLOURS = {"U": "W", "L": "O", "F": "G", "R": "R", "B": "B", "D": "Y"}
OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L", "F": "B", "B": "F"}
MOVES = tuple(face + turn for face in FACES for turn in ("", "'"))
"""Quarter turns of the faces, clockwise as one looks at the face, and with ' counterclockwise."""

TABLE_DEPTH = 6
"""Positions at most so many turns from solved are tabled: 11,913 of them."""
MAX_SEARCH_DEPTH = 14 - TABLE_DEPTH
"""No position is further than 14 turns from solved."""

# These leave the corner at the back, left and bottom in place, so every position is reached once, in one orientation.
_KEPT_MOVES = ("U", "U'", "R", "R'", "F", "F'")


def solved_cube() -> Cube:
    """Every face in its own colour."""
    return tuple(COLOURS[face] for face in FACES for _ in range(4))


def turn(cube: Cube, move: str) -> Cube:
    """The cube after one of `MOVES`."""
    return _turns()[move](cube)


def is_solved(cube: Cube) -> bool:
    """Every face has one colour, however the whole cube lies."""
    return all(cube[at] == cube[at + 1] == cube[at + 2] == cube[at + 3] for at in range(0, 24, 4))


def oriented(cube: Cube) -> Cube:
    """The colours renamed so that the back left bottom corner is right: the same for all ways the whole cube lies."""
    names: dict[str, str] = {}
    for face, sticker in _kept_corner().items():
        names[cube[sticker]] = COLOURS[face]
        names[_opposite_colours()[cube[sticker]]] = COLOURS[OPPOSITE[face]]
    return tuple(names[colour] for colour in cube)


def solve(cube: Cube) -> list[str]:
    """A shortest solution in quarter turns."""
    table = _distances()
    start = oriented(cube)
    came: dict[Cube, tuple[Cube, str]] = {}
    frontier, seen = [start], {start}
    for _ in range(MAX_SEARCH_DEPTH + 1):
        known = [position for position in frontier if position in table]
        if known:
            middle = min(known, key=lambda position: table[position])
            return [*_moves_to(middle, came), *_moves_down(middle, table)]
        reached: list[Cube] = []
        for position in frontier:
            for move in _KEPT_MOVES:
                after = turn(position, move)
                if after not in seen:
                    seen.add(after)
                    came[after] = (position, move)
                    reached.append(after)
        frontier = reached
    raise ValueError("these stickers are no position of the cube")


def distance(cube: Cube) -> int:
    """Quarter turns from solved, `TABLE_DEPTH + 1` for all that are further."""
    return _distances().get(oriented(cube), TABLE_DEPTH + 1)


def _moves_to(position: Cube, came: Mapping[Cube, tuple[Cube, str]]) -> list[str]:
    moves: list[str] = []
    while position in came:
        position, move = came[position]
        moves.append(move)
    return moves[::-1]


def _moves_down(position: Cube, table: Mapping[Cube, int]) -> list[str]:
    moves: list[str] = []
    while table[position]:
        for move in _KEPT_MOVES:
            after = turn(position, move)
            if table.get(after, TABLE_DEPTH + 1) < table[position]:
                position = after
                moves.append(move)
                break
    return moves


@lru_cache(maxsize=1)
def _distances() -> dict[Cube, int]:
    """Quarter turns from solved of the positions near it."""
    distances = {solved_cube(): 0}
    frontier = [solved_cube()]
    for depth in range(1, TABLE_DEPTH + 1):
        reached: list[Cube] = []
        for position in frontier:
            for move in _KEPT_MOVES:
                after = turn(position, move)
                if after not in distances:
                    distances[after] = depth
                    reached.append(after)
        frontier = reached
    return distances


@lru_cache(maxsize=1)
def _turns() -> Mapping[str, Callable[[Cube], Cube]]:
    stickers = _stickers()
    place = {sticker: at for at, sticker in enumerate(stickers)}
    turns: dict[str, Callable[[Cube], Cube]] = {}
    for face, (axis, _, _) in FACES.items():
        source, back = list(range(24)), list(range(24))
        for at, (corner, facing) in enumerate(stickers):
            if _dot(corner, axis) > 0:
                to = place[(_clockwise(corner, axis), _clockwise(facing, axis))]
                source[to], back[at] = at, to
        turns[face], turns[f"{face}'"] = itemgetter(*source), itemgetter(*back)
    return turns


@lru_cache(maxsize=1)
def _stickers() -> tuple[tuple[Vector, Vector], ...]:
    """Corner and facing of each sticker."""
    found: list[tuple[Vector, Vector]] = []
    for facing, right, down in FACES.values():
        for row in (-1, 1):
            for column in (-1, 1):
                x, y, z = (f + row * d + column * r for f, r, d in zip(facing, right, down, strict=True))
                found.append(((x, y, z), facing))
    return tuple(found)


@lru_cache(maxsize=1)
def _kept_corner() -> Mapping[str, int]:
    """The stickers of the back left bottom corner, by face."""
    facings = {facing: face for face, (facing, _, _) in FACES.items()}
    return {facings[facing]: at for at, (corner, facing) in enumerate(_stickers()) if corner == (-1, -1, -1)}


@lru_cache(maxsize=1)
def _opposite_colours() -> Mapping[str, str]:
    return {COLOURS[face]: COLOURS[other] for face, other in OPPOSITE.items()}


def _clockwise(vector: Vector, axis: Vector) -> Vector:
    """A quarter turn about the axis, clockwise as one looks at its tip."""
    (a, b, c), (x, y, z) = axis, vector
    along = _dot(vector, axis)
    return y * c - z * b + along * a, z * a - x * c + along * b, x * b - y * a + along * c


def _dot(one: Vector, other: Vector) -> int:
    return sum(a * b for a, b in zip(one, other, strict=True))
