"""The rules of 2048 on immutable boards, and an expert that looks ahead. A board is four rows of exponents, 0 empty."""

from functools import lru_cache
from itertools import pairwise

Row = tuple[int, int, int, int]
Board = tuple[Row, Row, Row, Row]

SIZE = 4
DIRECTIONS = ("up", "right", "down", "left")
FOUR_CHANCE = 0.1
"""A new tile is a 4 with this chance, else a 2."""

_MAX_SPAWNS_LOOKED_AT = 6
_LOST = -1e6


@lru_cache(maxsize=1 << 16)
def slide_left(row: Row) -> Row:
    """Tiles slid to the left; each of two equal neighbours merges once, the leftmost first."""
    tiles = [tile for tile in row if tile]
    merged: list[int] = []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tiles.pop(0)
            tile += 1
        merged.append(tile)
    first, second, third, fourth = merged + [0] * (SIZE - len(merged))
    return first, second, third, fourth


@lru_cache(maxsize=1 << 16)
def slide_right(row: Row) -> Row:
    """Tiles slid to the right, the rightmost merging first."""
    a, b, c, d = row
    d, c, b, a = slide_left((d, c, b, a))
    return a, b, c, d


def slide(board: Board, direction: str) -> Board:
    """The board after a move, before a new tile appears; the same board where nothing moves."""
    slide_row = slide_left if direction in ("left", "up") else slide_right
    if direction in ("left", "right"):
        a, b, c, d = board
        return slide_row(a), slide_row(b), slide_row(c), slide_row(d)
    a, b, c, d = _transpose(board)
    return _transpose((slide_row(a), slide_row(b), slide_row(c), slide_row(d)))


def possible_moves(board: Board) -> tuple[str, ...]:
    """The directions in which something moves."""
    return tuple(direction for direction in DIRECTIONS if slide(board, direction) != board)


def empty_cells(board: Board) -> list[tuple[int, int]]:
    """Row and column of each empty cell, in reading order."""
    return [(row, column) for row in range(SIZE) for column in range(SIZE) if not board[row][column]]


def with_tile(board: Board, cell: tuple[int, int], exponent: int) -> Board:
    """The board with one more tile."""
    rows = [list(row) for row in board]
    rows[cell[0]][cell[1]] = exponent
    first, second, third, fourth = (_row(row) for row in rows)
    return first, second, third, fourth


def largest(board: Board) -> int:
    """The exponent of the largest tile."""
    return max(map(max, board))


def expert_move(board: Board) -> str:
    """The best move by looking two moves ahead, 2s appearing between; needs a board on which something moves."""
    return max(possible_moves(board), key=lambda direction: _after_spawns(slide(board, direction)))


def _after_spawns(board: Board) -> float:
    """What a board is worth before a tile appears: the mean over where it may, a spread of places if there are many."""
    cells = empty_cells(board)
    step = max(1, -(-len(cells) // _MAX_SPAWNS_LOOKED_AT))
    values = [_best(with_tile(board, cell, 1)) for cell in cells[::step]]
    return sum(values) / len(values)


def _best(board: Board) -> float:
    return max((_worth(slide(board, direction)) for direction in possible_moves(board)), default=_LOST)


def _worth(board: Board) -> float:
    return sum(map(_line_worth, board)) + sum(map(_line_worth, _transpose(board)))


@lru_cache(maxsize=1 << 16)
def _line_worth(line: Row) -> float:
    """Empty cells and equal neighbours are good; large tiles, and tiles that rise and fall along the line, are bad."""
    num_empty = line.count(0)
    num_merges = sum(a == b != 0 for a, b in pairwise(line))
    weights = [tile**4 for tile in line]
    rises = sum(max(0, b - a) for a, b in pairwise(weights))
    falls = sum(max(0, a - b) for a, b in pairwise(weights))
    return 270 * num_empty + 700 * num_merges - 47 * min(rises, falls) - 11 * sum(tile**3.5 for tile in line)


def _transpose(board: Board) -> Board:
    a, b, c, d = zip(*board, strict=True)
    return a, b, c, d


def _row(tiles: list[int]) -> Row:
    a, b, c, d = tiles
    return a, b, c, d
