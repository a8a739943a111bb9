"""Square grids as flat lists: a cell is `row * size + column`; rows and columns are shown counted from 1."""

from collections.abc import Iterable, Mapping

DIRECTIONS = ("up", "down", "left", "right")


def offsets(size: int) -> dict[str, int]:
    """How far each direction moves the index of a cell."""
    return {"up": -size, "down": size, "left": -1, "right": 1}


def blank_grid(size: int, symbol: str) -> list[str]:
    """The characters of a grid as text, line ends included; `grid_index` says where a cell's is."""
    return list("\n".join([symbol * size] * size))


def grid_index(cell: int, size: int) -> int:
    """Where the character of a cell is in the text of the grid."""
    return cell + cell // size


def coordinates(cells: Iterable[int], size: int) -> str:
    """`(1,2) (3,4)`: row and column of each cell, in order; `none` where there is no cell."""
    return " ".join(f"({cell // size + 1},{cell % size + 1})" for cell in sorted(cells)) or "none"


def path(start: int, goal: int, steps: Mapping[str, int], free: frozenset[int]) -> list[str] | None:
    """A shortest way over free cells as directions; None where there is none."""
    came: dict[int, tuple[int, str]] = {start: (start, "")}
    frontier = [start]
    while frontier and goal not in came:
        reached: list[int] = []
        for cell in frontier:
            for name, step in steps.items():
                if cell + step in free and cell + step not in came:
                    came[cell + step] = (cell, name)
                    reached.append(cell + step)
        frontier = reached
    if goal not in came:
        return None
    moves: list[str] = []
    while goal != start:
        goal, move = came[goal]
        moves.append(move)
    return moves[::-1]


def region(start: int, steps: Iterable[int], free: frozenset[int]) -> set[int]:
    """All cells that can be reached over free cells, the start included."""
    found, stack, steps = {start}, [start], tuple(steps)
    while stack:
        cell = stack.pop()
        for step in steps:
            if cell + step in free and cell + step not in found:
                found.add(cell + step)
                stack.append(cell + step)
    return found
