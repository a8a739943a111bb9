"""Sokoban in generated rooms. The task id alone fixes the room; the episode's seed changes nothing."""

from collections.abc import Mapping

from env_server.environment import KnobValue
from env_server.environments.generated_tasks import GeneratedTask, Generator, whole
from env_server.environments.grid import DIRECTIONS, blank_grid, coordinates, grid_index, offsets
from env_server.environments.puzzle import (
    ADMISSIBLE_ACTIONS,
    MOVES_PER_TURN,
    OBSERVATION,
    InvalidActionError,
    Puzzle,
    PuzzleEnvironment,
    moves_format,
    puzzle_spec,
    read_moves,
)
from env_server.environments.sokoban_rooms import Room, make_room
from env_server.environments.sokoban_solver import Solver, push_distances

MAX_ORACLE_STATES = 20_000
"""Bound of the oracle's search: about a second. In the room as generated, the way it was made is known beyond it."""

_MOVES = {direction: direction for direction in DIRECTIONS}
_SYMBOLS = "# wall, _ floor, . target, $ box, * box on a target, @ you, + you on a target"
_RULES = (
    "Sokoban: push every box onto a target. Walk into a box to push it, if the cell behind it is free; boxes cannot be "
    "pulled, nor two pushed at once."
)


def _mismatch(values: Mapping[str, KnobValue]) -> str:
    most = int(values["size"]) - 3
    return f"boxes must be at most size - 3 = {most}" if int(values["boxes"]) > most else ""


class SokobanEnvironment(PuzzleEnvironment):
    """One room at a time."""

    generator = Generator(
        name="sokoban",
        version=1,
        parameters=(
            whole("size", 7, 5, 14, "rows and columns, the walls included"),
            whole("boxes", 2, 1, 6, "number of boxes, at most size - 3"),
            whole("depth", 30, 1, 300, "pulls of the reverse walk that makes the room"),
        ),
        listed={"size": (7, 6, 8, 10), "boxes": (2, 1, 3, 4), "depth": (30, 10, 100)},
        mismatch=_mismatch,
    )
    spec = puzzle_spec(
        generator,
        action_format="up, down, left or right.",
        max_turns=200,
        knobs=(MOVES_PER_TURN, OBSERVATION, ADMISSIBLE_ACTIONS),
        description="Push all boxes onto targets; score is the share of boxes that are there.",
    )

    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        size, num_boxes, depth = (task.integer(name) for name in ("size", "boxes", "depth"))
        room = task.draw(
            lambda rng: make_room(rng, size=size, num_boxes=num_boxes, depth=depth), layout=lambda room: room.layout
        )
        return SokobanGame(room, observation=str(knobs["observation"]), moves_per_turn=int(knobs["moves_per_turn"]))


class SokobanGame(Puzzle):
    """A room in play."""

    def __init__(self, room: Room, *, observation: str, moves_per_turn: int) -> None:
        self._room = room
        self._layout = room.layout
        self._observation = observation
        self._moves_per_turn = moves_per_turn
        self._offsets = offsets(room.size)
        self._boxes = room.boxes
        self._player = room.player
        self._ground = blank_grid(room.size, "#")
        for cell in room.floor:
            self._ground[grid_index(cell, room.size)] = "." if cell in room.targets else "_"
        self._distances = push_distances(room.floor, room.targets, room.size)
        self._initial_distance = self._distance() or 1
        self._plan: list[str] | None = None
        self._is_planned = False
        lines = [_RULES, moves_format(DIRECTIONS, moves_per_turn)]
        if observation != "coordinates":
            lines.append(f"Symbols: {_SYMBOLS}.")
        if observation != "grid":
            lines.append(f"Coordinates are (row,column) from (1,1) at the top left to ({room.size},{room.size}).")
            walls = set(range(room.size**2)) - room.floor
            lines.append(f"Walls: {coordinates(walls, room.size)}")
        self.rules = "\n".join(lines)

    def act(self, action: str) -> str:
        answers: list[str] = []
        has_changed = False
        for move in read_moves(action, _MOVES, self._moves_per_turn):
            answer = self._move(move)
            has_changed |= answer is not None
            answers.append(answer or "The way is blocked.")
            if self.is_won:
                answers.append("Every box is on a target. You win.")
                break
        text = " ".join(answers)
        if not has_changed:
            raise InvalidActionError(text)
        return text

    def view(self) -> str:
        if self._observation == "grid":
            return self._grid()
        room = self._room
        text = (
            f"You: {coordinates([self._player], room.size)}\nBoxes: {coordinates(self._boxes, room.size)}\n"
            f"Targets: {coordinates(room.targets, room.size)}"
        )
        return text if self._observation == "coordinates" else f"{text}\n{self._grid()}"

    def state(self) -> str:
        return f"{self._player} {sorted(self._boxes)} {self._layout}"

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self.is_won else tuple(move for move in DIRECTIONS if self._effect(move) is not None)

    def expert_action(self) -> str | None:
        """The next move of the plan with the fewest pushes; None where none is found within the bound."""
        if not self._is_planned:
            self._plan = self._make_plan()
            self._is_planned = True
        return self._plan[0] if self._plan else None

    def progress(self) -> float:
        """How much shorter the boxes' ways to their nearest targets have become; 0 once a box can never get there."""
        distance = self._distance()
        return 0.0 if distance is None else min(1.0, max(0.0, 1.0 - distance / self._initial_distance))

    def _make_plan(self) -> list[str] | None:
        room = self._room
        solver = Solver(floor=room.floor, targets=room.targets, size=room.size, max_states=MAX_ORACLE_STATES)
        plan = solver.solve(self._boxes, self._player)
        if plan is None and self._player == room.player and self._boxes == room.boxes:
            return list(room.solution)
        return plan

    def _effect(self, move: str) -> tuple[int, bool] | None:
        """Where the player would stand, and whether a box would be pushed; None where the way is blocked."""
        ahead = self._player + self._offsets[move]
        if ahead not in self._room.floor:
            return None
        if ahead not in self._boxes:
            return ahead, False
        behind = ahead + self._offsets[move]
        return (ahead, True) if behind in self._room.floor and behind not in self._boxes else None

    def _move(self, move: str) -> str | None:
        effect = self._effect(move)
        if effect is None:
            return None
        self._player, pushes = effect
        if pushes:
            self._boxes = self._boxes - {self._player} | {self._player + self._offsets[move]}
            self.score = len(self._boxes & self._room.targets) / len(self._boxes)
            self.is_won = self._boxes == self._room.targets
        self._follow(move)
        return "You push a box." if pushes else "You walk."

    def _follow(self, move: str) -> None:
        if self._plan and self._plan[0] == move:
            del self._plan[0]
        else:
            self._plan, self._is_planned = None, False

    def _distance(self) -> int | None:
        distances = [self._distances.get(box) for box in self._boxes]
        known = [distance for distance in distances if distance is not None]
        return sum(known) if len(known) == len(distances) else None

    def _grid(self) -> str:
        symbols, size = self._ground.copy(), self._room.size
        for box in self._boxes:
            at = grid_index(box, size)
            symbols[at] = "*" if symbols[at] == "." else "$"
        at = grid_index(self._player, size)
        symbols[at] = "+" if symbols[at] == "." else "@"
        return "".join(symbols)
