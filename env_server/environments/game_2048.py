"""2048: slide and merge tiles until one of the wanted size is there.

The task id fixes the two tiles of the first board; the episode's seed fixes which tiles appear later.
"""

import random
from collections.abc import Mapping

from env_server.environment import KnobValue
from env_server.environments.game_2048_rules import (
    DIRECTIONS,
    FOUR_CHANCE,
    Board,
    empty_cells,
    expert_move,
    largest,
    possible_moves,
    slide,
    with_tile,
)
from env_server.environments.generated_tasks import GeneratedTask, Generator, choice
from env_server.environments.puzzle import (
    ADMISSIBLE_ACTIONS,
    MOVES_PER_TURN,
    InvalidActionError,
    Puzzle,
    PuzzleEnvironment,
    moves_format,
    puzzle_spec,
    read_moves,
)

LARGEST_SURE_GOAL = 256
"""The expert loses some games with a larger goal, so it gives no oracle there."""
GOALS = ("256", "16", "32", "64", "128", "512", "1024", "2048")

_EMPTY: Board = ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
_MOVES = {direction: direction for direction in DIRECTIONS}


class Game2048Environment(PuzzleEnvironment):
    """One board at a time."""

    generator = Generator(
        name="game_2048",
        version=1,
        parameters=(choice("goal", GOALS, "the tile to make"),),
        listed={"goal": GOALS},
    )
    spec = puzzle_spec(
        generator,
        action_format="up, right, down or left.",
        max_turns=1200,
        knobs=(MOVES_PER_TURN, ADMISSIBLE_ACTIONS),
        description="Make the wanted tile; about goal / 2 moves. Score is the share of the doublings that it takes.",
    )

    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        board = task.draw(lambda rng: _spawn(_spawn(_EMPTY, rng), rng), layout=str)
        return Game2048(
            board, task.chance(seed), goal=task.integer("goal"), moves_per_turn=int(knobs["moves_per_turn"])
        )


class Game2048(Puzzle):
    """A board in play."""

    def __init__(self, board: Board, chance: random.Random, *, goal: int, moves_per_turn: int) -> None:
        self._board, self._chance = board, chance
        self._goal = goal.bit_length() - 1
        self._start = largest(board)
        self._moves_per_turn = moves_per_turn
        self._num_spawns = 0
        self.rules = (
            f"2048: slide the tiles; two equal ones that meet merge into their sum. Make a tile of {goal}. "
            "After each move a 2 or a 4 appears.\n"
            f"{moves_format(DIRECTIONS, moves_per_turn)} The game is lost when nothing can move.\n"
            "Symbols: . is an empty cell."
        )

    def act(self, action: str) -> str:
        moves = read_moves(action, _MOVES, self._moves_per_turn)
        num_made = 0
        for move in moves:
            num_made += self._move(move)
            if self.is_won or self.is_lost:
                break
        if not num_made:
            raise InvalidActionError("Nothing moves that way.")
        if self.is_won:
            return "The tile is there. You win."
        if self.is_lost:
            return "Nothing can move. You lose."
        return "The tiles slide." if num_made == len(moves) else f"The tiles slide {num_made} times."

    def view(self) -> str:
        return "\n".join(" ".join(str(1 << tile) if tile else "." for tile in row) for row in self._board)

    def state(self) -> str:
        return f"{self._board} {self._num_spawns} {self._goal}"

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self.is_won else possible_moves(self._board)

    def expert_action(self) -> str | None:
        """A move by looking two moves ahead; None where the goal is one that it does not always reach."""
        return expert_move(self._board) if 1 << self._goal <= LARGEST_SURE_GOAL else None

    def progress(self) -> float:
        return self.score

    def _move(self, move: str) -> bool:
        slid = slide(self._board, move)
        if slid == self._board:
            return False
        self._board = slid
        self.score = (largest(slid) - self._start) / (self._goal - self._start)
        self.is_won = largest(slid) >= self._goal
        if not self.is_won:
            self._board = _spawn(slid, self._chance)
            self._num_spawns += 1
            self.is_lost = not possible_moves(self._board)
        return True


def _spawn(board: Board, chance: random.Random) -> Board:
    cells = empty_cells(board)
    cell = cells[int(chance.random() * len(cells))]
    return with_tile(board, cell, 2 if chance.random() < FOUR_CHANCE else 1)
