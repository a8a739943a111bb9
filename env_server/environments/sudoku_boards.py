"""Sudoku boards with exactly one solution. A board is a flat tuple of digits, 0 for a blank."""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isqrt

Board = tuple[int, ...]


def make_solution(rng: random.Random, size: int) -> Board:
    """A full board."""
    digits = list(range(1, size + 1))
    rng.shuffle(digits)
    return next(solutions([0] * size**2, digits=digits, rng=rng))


def layout(solution: Board) -> str:
    """The board up to the names of the digits: boards that differ only in those are one layout."""
    names: dict[int, int] = {}
    for digit in solution:
        names.setdefault(digit, len(names))
    return " ".join(str(names[digit]) for digit in solution)


def take_givens(rng: random.Random, solution: Board, num_givens: int) -> Board:
    """Blank cells at random, so that only this solution fits and so many givens are left."""
    while True:
        board, num_left = list(solution), len(solution)
        for cell in rng.sample(range(len(solution)), len(solution)):
            if num_left == num_givens:
                return tuple(board)
            board[cell] = 0
            if next(solutions(board.copy(), barred=(cell, solution[cell])), None) is None:
                num_left -= 1
            else:
                board[cell] = solution[cell]


@lru_cache(maxsize=4)
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell the others of its row, its column and its box."""
    box = isqrt(size)

    def units(cell: int) -> tuple[int, int, int]:
        row, column = divmod(cell, size)
        return row, column, row // box * box + column // box

    def sees(cell: int, other: int) -> bool:
        return cell != other and any(a == b for a, b in zip(units(cell), units(other), strict=True))

    return tuple(tuple(other for other in range(size**2) if sees(cell, other)) for cell in range(size**2))


def solutions(
    board: list[int],
    *,
    digits: Sequence[int] = (),
    barred: tuple[int, int] | None = None,
    rng: random.Random | None = None,
) -> Iterator[Board]:
    """Every solution, by filling the blank with the fewest candidates first; `board` is worked on.

    Digits are tried in the given order, and never the one that is barred from a cell; ties between blanks are broken
    at random if `rng` is given.
    """
    size = isqrt(len(board))
    seen_by = peers(size)
    blanks = [cell for cell, digit in enumerate(board) if not digit]
    if rng is not None:
        rng.shuffle(blanks)
    used = [0] * len(board)
    for cell in blanks:
        for peer in seen_by[cell]:
            used[cell] |= 1 << board[peer]
    if barred is not None:
        used[barred[0]] |= 1 << barred[1]
    yield from _fill(board, set(blanks), blanks, used, seen_by, digits or range(1, size + 1))


def _fill(
    board: list[int],
    blank: set[int],
    order: Sequence[int],
    used: list[int],
    seen_by: Sequence[Sequence[int]],
    digits: Sequence[int],
) -> Iterator[Board]:
    if not blank:
        yield tuple(board)
        return
    cell = max((cell for cell in order if cell in blank), key=lambda cell: (used[cell] >> 1).bit_count())
    blank.discard(cell)
    for digit in digits:
        bit = 1 << digit
        if used[cell] & bit:
            continue
        board[cell] = digit
        changed = [peer for peer in seen_by[cell] if peer in blank and not used[peer] & bit]
        for peer in changed:
            used[peer] |= bit
        yield from _fill(board, blank, order, used, seen_by, digits)
        for peer in changed:
            used[peer] ^= bit
        board[cell] = 0
    blank.add(cell)
