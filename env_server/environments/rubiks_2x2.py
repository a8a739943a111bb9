"""The 2x2x2 Rubik's cube, scrambled. The task id alone fixes the scramble; the episode's seed changes nothing."""

import random
from collections.abc import Mapping

from env_server.environment import KnobValue
from env_server.environments.generated_tasks import GeneratedTask, Generator, whole
from env_server.environments.puzzle import (
    ADMISSIBLE_ACTIONS,
    MOVES_PER_TURN,
    Puzzle,
    PuzzleEnvironment,
    moves_format,
    puzzle_spec,
    read_moves,
)
from env_server.environments.rubiks_2x2_cube import (
    FACES,
    MOVES,
    OPPOSITE,
    Cube,
    distance,
    is_solved,
    oriented,
    solve,
    solved_cube,
    turn,
)

_KNOWN = {move.lower(): move for move in MOVES}


class Rubiks2x2Environment(PuzzleEnvironment):
    """One cube at a time."""

    generator = Generator(
        name="rubiks_2x2",
        version=1,
        parameters=(whole("depth", 5, 2, 30, "quarter turns of the scramble; a solution is never longer than 14"),),
        listed={"depth": (5, 2, 3, 4, 6, 8, 11, 14)},
    )
    spec = puzzle_spec(
        generator,
        action_format="A quarter turn: U, D, L, R, F or B, with ' for counterclockwise.",
        max_turns=60,
        knobs=(MOVES_PER_TURN, ADMISSIBLE_ACTIONS),
        description="Turn the faces until each has one colour.",
    )

    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        depth = task.integer("depth")
        cube = task.draw(lambda rng: _scramble(rng, depth), layout=lambda cube: "".join(oriented(cube)))
        return CubeGame(cube, moves_per_turn=int(knobs["moves_per_turn"]))


class CubeGame(Puzzle):
    """A cube in play."""

    def __init__(self, cube: Cube, *, moves_per_turn: int) -> None:
        self._cube = cube
        self._moves_per_turn = moves_per_turn
        self._start_distance = distance(cube)
        self._plan: list[str] = []
        self.rules = (
            "Rubik's cube, 2x2x2: turn faces until each has one colour.\n"
            f"{moves_format(MOVES, moves_per_turn)} A quarter turn is clockwise as you look at the face, with ' "
            "counterclockwise.\n"
            "Faces: Up, Left, Front, Right, Back, Down, each as you look at it, upper row / lower row."
        )

    def act(self, action: str) -> str:
        moves = read_moves(action, _KNOWN, self._moves_per_turn)
        for number, move in enumerate(moves, start=1):
            self._turn(move)
            if self.is_won:
                return f"You turn {', '.join(moves[:number])}. Every face has one colour. You win."
        return f"You turn {', '.join(moves)}."

    def view(self) -> str:
        faces = (self._cube[at : at + 4] for at in range(0, 24, 4))
        return "\n".join(
            f"{name}: {a} {b} / {c} {d}" for name, (a, b, c, d) in zip(FACES, faces, strict=True)
        )  # fmt: skip

    def state(self) -> str:
        return "".join(self._cube)

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self.is_won else MOVES

    def expert_action(self) -> str:
        """The next turn of a shortest solution."""
        if not self._plan:
            self._plan = solve(self._cube)
        return self._plan[0]

    def progress(self) -> float:
        """How much nearer the solved cube is, in quarter turns; distances beyond 6 count as 7."""
        return max(0.0, 1.0 - distance(self._cube) / self._start_distance)

    def _turn(self, move: str) -> None:
        self._cube = turn(self._cube, move)
        self._plan = self._plan[1:] if self._plan and self._plan[0] == move else []
        self.is_won = is_solved(self._cube)
        self.score = float(self.is_won)


def _scramble(rng: random.Random, depth: int) -> Cube | None:
    """Turns of which no two neighbours share an axis: the second would only undo or repeat the first."""
    cube, last = solved_cube(), ""
    for _ in range(depth):
        faces = [face for face in FACES if not last or face not in (last, OPPOSITE[last])]
        last = rng.choice(faces)
        cube = turn(cube, last + rng.choice(("", "'")))
    return None if is_solved(cube) else cube
