"""FrozenLake on generated maps. The task id fixes map and chance to slip; the episode's seed fixes where one slips."""

import random
from collections.abc import Mapping

from env_server.environment import KnobValue
from env_server.environments.frozen_lake_maps import DIRECTIONS, Lake, make_lake
from env_server.environments.generated_tasks import GeneratedTask, Generator, fraction, whole
from env_server.environments.grid import blank_grid, coordinates, grid_index
from env_server.environments.puzzle import (
    ADMISSIBLE_ACTIONS,
    MOVES_PER_TURN,
    OBSERVATION,
    Puzzle,
    PuzzleEnvironment,
    moves_format,
    puzzle_spec,
    read_moves,
)

_MOVES = {direction: direction for direction in DIRECTIONS}
_RULES = "Frozen lake: reach the goal without falling into a hole."
_SLIPPERY = "The ice is slippery: a move may take you to the left or right of where you meant to go."


class FrozenLakeEnvironment(PuzzleEnvironment):
    """One lake at a time."""

    generator = Generator(
        name="frozen_lake",
        version=1,
        parameters=(
            whole("size", 8, 4, 12, "rows and columns"),
            fraction("frozen", 0.8, 0.6, 0.95, "share of ice"),
            fraction("slip", 0.2, 0.0, 0.7, "chance that a move goes to the side, half each; Gymnasium's is 2/3"),
        ),
        listed={"size": (8, 4, 6), "frozen": (0.8,), "slip": (0.2, 0.0, 0.667)},
    )
    spec = puzzle_spec(
        generator,
        action_format="left, down, right or up.",
        max_turns=200,
        knobs=(MOVES_PER_TURN, OBSERVATION, ADMISSIBLE_ACTIONS),
        description="Cross a frozen lake around the holes; from the start some way is safe from every slip.",
    )

    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        size, frozen, slip = task.integer("size"), float(knobs["frozen"]), float(knobs["slip"])
        lake = task.draw(
            lambda rng: make_lake(rng, size=size, frozen=frozen, slip=slip), layout=lambda lake: lake.layout
        )
        return FrozenLakeGame(
            lake,
            task.chance(seed),
            observation=str(knobs["observation"]),
            moves_per_turn=int(knobs["moves_per_turn"]),
        )


class FrozenLakeGame(Puzzle):
    """A lake in play."""

    def __init__(self, lake: Lake, chance: random.Random, *, observation: str, moves_per_turn: int) -> None:
        self._lake, self._chance = lake, chance
        self._observation, self._moves_per_turn = observation, moves_per_turn
        self._cell = 0
        self._num_moves = 0
        self._distances = lake.distances()
        self._ground = blank_grid(lake.size, "_")
        for cell in lake.holes:
            self._ground[grid_index(cell, lake.size)] = "O"
        self._ground[grid_index(lake.goal, lake.size)] = "G"
        lines = [_RULES, _SLIPPERY] if lake.slip else [_RULES]
        lines.append(moves_format(DIRECTIONS, moves_per_turn))
        if observation != "coordinates":
            lines.append("Symbols: P you, _ ice, O hole, G goal.")
        if observation != "grid":
            lines.append(f"Coordinates are (row,column) from (1,1) at the top left to ({lake.size},{lake.size}).")
            lines.append(f"Goal: {coordinates([lake.goal], lake.size)} Holes: {coordinates(lake.holes, lake.size)}")
        self.rules = "\n".join(lines)

    def act(self, action: str) -> str:
        answers: list[str] = []
        for move in read_moves(action, _MOVES, self._moves_per_turn):
            answers.append(self._move(move))
            if self.is_won or self.is_lost:
                break
        return " ".join(answers)

    def view(self) -> str:
        place = f"You: {coordinates([self._cell], self._lake.size)}"
        match self._observation:
            case "grid":
                return self._grid()
            case "coordinates":
                return place
            case _:
                return f"{place}\n{self._grid()}"

    def state(self) -> str:
        return f"{self._cell} {self._num_moves} {self._lake.slip} {self._lake.layout}"

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self.is_won or self.is_lost else DIRECTIONS

    def expert_action(self) -> str | None:
        """The next move of a way that no slip ends; None on cells without one."""
        return self._lake.sure_moves.get(self._cell)

    def progress(self) -> float:
        distance = self._distances.get(self._cell)
        return 0.0 if distance is None else max(0.0, 1.0 - distance / self._distances[0])

    def _move(self, move: str) -> str:
        lake, before = self._lake, self._cell
        self._cell = self._land(move)
        self._num_moves += 1
        self.is_won = self._cell == lake.goal
        self.is_lost = self._cell in lake.holes
        self.score = float(self.is_won)
        if self.is_won:
            return "You reach the goal. You win."
        if self.is_lost:
            return "You fall into a hole. You lose."
        if self._cell == before:
            return "You stay where you are."
        return "You move." if self._cell == lake.neighbour(before, move) else "You slip."

    def _land(self, move: str) -> int:
        outcomes = self._lake.outcomes(self._cell, move)
        drawn = self._chance.random()
        for outcome in outcomes:
            drawn -= outcome.probability
            if drawn < 0:
                return outcome.cell
        return outcomes[-1].cell

    def _grid(self) -> str:
        symbols = self._ground.copy()
        at = grid_index(self._cell, self._lake.size)
        symbols[at] = {"_": "P", "O": "X", "G": "P"}[symbols[at]]
        return "".join(symbols)
