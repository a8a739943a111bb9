"""Sudoku on generated boards with one solution.

The task id alone fixes the board; the episode's seed changes nothing.
"""

import re
from collections.abc import Mapping
from math import isqrt

from env_server.environment import KnobValue
from env_server.environments.generated_tasks import GeneratedTask, Generator, choice
from env_server.environments.puzzle import (
    ADMISSIBLE_ACTIONS,
    InvalidActionError,
    Puzzle,
    PuzzleEnvironment,
    puzzle_spec,
)
from env_server.environments.sudoku_boards import Board, layout, make_solution, peers, take_givens

NUM_GIVENS = {
    "9": {"easy": 40, "medium": 34, "hard": 28},
    "4": {"easy": 10, "medium": 8, "hard": 6},
}
_ACTION = re.compile(r"([1-9])[ ,]+([1-9])[ ,]+([0-9])", re.ASCII)
_FORMAT = "Action: ROW COLUMN DIGIT, such as 1 2 3; digit 0 clears the cell."


class SudokuEnvironment(PuzzleEnvironment):
    """One board at a time."""

    generator = Generator(
        name="sudoku",
        version=1,
        parameters=(
            choice("size", ("9", "4"), "rows and columns"),
            choice("difficulty", ("easy", "medium", "hard"), "40, 34 or 28 givens of 81; 10, 8 or 6 of 16"),
        ),
        listed={"size": ("9", "4"), "difficulty": ("easy", "medium", "hard")},
    )
    spec = puzzle_spec(
        generator,
        action_format="ROW COLUMN DIGIT, such as 1 2 3; digit 0 clears the cell.",
        max_turns=120,
        knobs=(ADMISSIBLE_ACTIONS,),
        description="Fill a board that has one solution; a digit that a row, column or box already has is refused.",
    )

    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        size = task.integer("size")
        num_givens = NUM_GIVENS[str(knobs["size"])][str(knobs["difficulty"])]
        solution = task.draw(lambda rng: make_solution(rng, size), layout=layout)
        return SudokuGame(take_givens(task.random("givens"), solution, num_givens), solution)


class SudokuGame(Puzzle):
    """A board in play."""

    def __init__(self, givens: Board, solution: Board) -> None:
        self._givens, self._solution = givens, solution
        self._size = size = isqrt(len(givens))
        self._board = list(givens)
        self._blanks = [cell for cell, digit in enumerate(givens) if not digit]
        box = isqrt(size)
        self.rules = (
            f"Sudoku: fill the board so that every row, column and {box}x{box} box holds each digit from 1 to {size} "
            f"once.\n{_FORMAT} Rows and columns count from 1 at the top left.\nSymbols: . is a blank."
        )

    def act(self, action: str) -> str:
        cell, digit = self._read(action)
        if self._givens[cell]:
            raise InvalidActionError("That cell is given.")
        if self._board[cell] == digit:
            raise InvalidActionError("That is there already.")
        if digit in self._seen(cell):
            raise InvalidActionError("That digit is already in the row, column or box.")
        self._board[cell] = digit
        if tuple(self._board) == self._solution:
            self.is_won, self.score = True, 1.0
            return "The board is full. You win."
        return "You write the digit." if digit else "You clear the cell."

    def view(self) -> str:
        size, box = self._size, isqrt(self._size)
        lines: list[str] = []
        for row in range(size):
            if row and row % box == 0:
                lines.append("-+-".join(["-" * (2 * box - 1)] * box))
            cells = ["." if not digit else str(digit) for digit in self._board[row * size : (row + 1) * size]]
            lines.append(" | ".join(" ".join(cells[start : start + box]) for start in range(0, size, box)))
        return "\n".join(lines)

    def state(self) -> str:
        return f"{self._board} {self._givens}"

    def admissible_actions(self) -> tuple[str, ...]:
        if self.is_won:
            return ()
        return tuple(
            self._action(cell, digit)
            for cell in self._blanks
            for digit in sorted(set(range(self._size + 1)) - {self._board[cell]} - self._seen(cell))
        )

    def expert_action(self) -> str:
        """Clear what is wrong, then fill blank after blank."""
        wrong = [cell for cell in self._blanks if self._board[cell] not in (0, self._solution[cell])]
        if wrong:
            return self._action(wrong[0], 0)
        blank = next(cell for cell in self._blanks if not self._board[cell])
        return self._action(blank, self._solution[blank])

    def progress(self) -> float:
        """Share of the blanks that hold the right digit."""
        num_right = sum(self._board[cell] == self._solution[cell] for cell in self._blanks)
        return num_right / len(self._blanks)

    def _read(self, action: str) -> tuple[int, int]:
        match = _ACTION.fullmatch(action.strip(" \t\r\n."))
        if match is None or max(map(int, match.groups())) > self._size:
            raise InvalidActionError(f"Not an action. {_FORMAT}")
        row, column, digit = map(int, match.groups())
        return (row - 1) * self._size + column - 1, digit

    def _action(self, cell: int, digit: int) -> str:
        return f"{cell // self._size + 1} {cell % self._size + 1} {digit}"

    def _seen(self, cell: int) -> set[int]:
        """Digits of the cell's row, column and box."""
        return {self._board[peer] for peer in peers(self._size)[cell]} - {0}
