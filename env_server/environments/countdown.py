"""Countdown: reach a target with each of some numbers used once. The task id alone fixes numbers and target.

Any number of tries; one that uses the right numbers but misses the target earns partial credit, once.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from env_server.environment import KnobValue
from env_server.environments.arithmetic import ExpressionError, evaluate
from env_server.environments.generated_tasks import GeneratedTask, Generator, whole
from env_server.environments.puzzle import InvalidActionError, Puzzle, PuzzleEnvironment, puzzle_spec

RIGHT_NUMBERS_SCORE = 0.1
"""For an expression of the right numbers with the wrong value, as in RAGEN."""
MIN_TARGET, MAX_TARGET = 10, 1000


@dataclass(frozen=True, slots=True)
class Countdown:
    """Numbers, a target, and an expression that reaches it."""

    numbers: tuple[int, ...]
    target: int
    solution: str

    @property
    def layout(self) -> str:
        return f"{sorted(self.numbers)} {self.target}"


class CountdownEnvironment(PuzzleEnvironment):
    """One target at a time."""

    generator = Generator(
        name="countdown",
        version=1,
        parameters=(
            whole("numbers", 4, 2, 8, "how many numbers there are"),
            whole("largest", 50, 10, 100, "numbers are from 1 to this"),
        ),
        listed={"numbers": (4, 3, 5, 6), "largest": (50, 100)},
    )
    spec = puzzle_spec(
        generator,
        action_format="An arithmetic expression such as (7 - 2) * 13 / 5.",
        max_turns=40,
        description="Reach the target with + - * / and each number once; 0.1 for a first try with the right numbers.",
    )

    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        num_numbers, largest = task.integer("numbers"), task.integer("largest")
        return CountdownGame(
            task.draw(
                lambda rng: make_countdown(rng, num_numbers=num_numbers, largest=largest),
                layout=lambda countdown: countdown.layout,
            )
        )


def make_countdown(rng: random.Random, *, num_numbers: int, largest: int) -> Countdown | None:
    """Numbers joined two by two at random, with whole results above 0; None where the result is out of range."""
    numbers = tuple(rng.randint(1, largest) for _ in range(num_numbers))
    parts = [(number, str(number)) for number in numbers]
    while len(parts) > 1:
        rng.shuffle(parts)
        parts.append(_join(rng, parts.pop(), parts.pop()))
    target, solution = parts[0]
    if not MIN_TARGET <= target <= MAX_TARGET or target in numbers:
        return None
    return Countdown(numbers, target, solution[1:-1])


class CountdownGame(Puzzle):
    """A target in play."""

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown
        self._nearness = 0.0
        self.rules = (
            "Countdown: write an expression that equals the target, with each of the numbers used exactly once. "
            "Try as often as you like.\n"
            "Action: an expression of numbers, + - * / and parentheses, such as (7 - 2) * 13 / 5."
        )

    def act(self, action: str) -> str:
        try:
            value = evaluate(action.strip(" \t\r\n."))
        except ExpressionError as error:
            raise InvalidActionError(str(error)) from error
        if sorted(value.operands) != sorted(self._countdown.numbers):
            raise InvalidActionError("Use each of the numbers exactly once, and no other.")
        target = self._countdown.target
        self.is_won = value.number == target
        self.score = 1.0 if self.is_won else RIGHT_NUMBERS_SCORE
        self._nearness = max(self._nearness, 1.0 - min(1.0, float(abs(value.number - target) / target)))
        return "That is the target. You win." if self.is_won else f"That is {value.number}, not {target}."

    def view(self) -> str:
        return f"Numbers: {' '.join(map(str, self._countdown.numbers))}. Target: {self._countdown.target}."

    def state(self) -> str:
        return f"{self._countdown.layout} {self.score} {self._nearness}"

    def admissible_actions(self) -> None:
        """Too many to list."""

    def expert_action(self) -> str:
        """The expression that the target was made with."""
        return self._countdown.solution

    def progress(self) -> float:
        """How near the best try came, as a share of the target."""
        return self._nearness


def _join(rng: random.Random, one: tuple[int, str], other: tuple[int, str]) -> tuple[int, str]:
    (large, left), (small, right) = max(one, other), min(one, other)
    operators = ["+", "*"]
    if large > small:
        operators.append("-")
    if large % small == 0:
        operators.append("/")
    operator = rng.choice(operators)
    results = {"+": large + small, "*": large * small, "-": large - small, "/": large // small}
    return results[operator], f"({left} {operator} {right})"
