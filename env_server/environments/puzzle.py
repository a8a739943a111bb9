"""What the puzzle environments share: an episode around a `Puzzle`, and one style of text and answers.

The first observation states the rules and the action format, then the state; every later one the answer to the action,
then the state. An action is invalid where it is not of the format or the rules refuse it (a blocked way, a digit
that is already in the row); it changes nothing and is a step all the same.
Reward is the change of the score, so that the rewards of an episode add up to its score.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from env_server.environment import (
    Determinism,
    Environment,
    EnvironmentSpec,
    KnobSpec,
    KnobValue,
    TaskInfo,
    Transition,
    switch,
)
from env_server.environments.generated_tasks import SPLITS, GeneratedTask, Generator

MAX_ACTION_CHARS = 400
"""Longer actions are answered without being read."""

ADMISSIBLE_ACTIONS = switch("admissible_actions", "list the actions that are valid now")
MOVES_PER_TURN = KnobSpec(
    name="moves_per_turn",
    kind="int",
    default=1,
    minimum=1,
    maximum=20,
    description="so many moves may stand in one action, separated by commas",
)
OBSERVATION = KnobSpec(
    name="observation",
    kind="choice",
    default="grid",
    choices=("grid", "coordinates", "both"),
    description="how the state is shown",
)


class InvalidActionError(Exception):
    """The action is not of the format or refused by the rules; the message is the environment's answer."""


class Puzzle(ABC):
    """One puzzle in play. Its text never repeats an action, which may be any text."""

    rules: str
    """Goal, rules and action format."""
    score: float = 0.0
    """0 at the start, 1 when won."""
    is_won: bool = False
    is_lost: bool = False

    @abstractmethod
    def act(self, action: str) -> str:
        """Apply an action and answer it; raise `InvalidActionError` and change nothing where it is invalid."""

    @abstractmethod
    def view(self) -> str:
        """The state as the agent sees it."""

    @abstractmethod
    def state(self) -> str:
        """The state with whatever is hidden."""

    @abstractmethod
    def admissible_actions(self) -> tuple[str, ...] | None:
        """The valid actions now, single moves only; None where they are too many to list."""

    @abstractmethod
    def expert_action(self) -> str | None:
        """What an expert would do now; None where no way to win is known."""

    def progress(self) -> float | None:
        """Nearness of the goal in [0, 1], 1 where it is reached; None where there is no measure of it."""
        return None


class PuzzleEnvironment(Environment):
    """Plays generated puzzles; a subclass gives the generator, the spec and how a puzzle begins."""

    generator: ClassVar[Generator]

    def __init__(self) -> None:
        self._puzzle: Puzzle | None = None
        self._lists_actions = False

    @abstractmethod
    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        """The task's puzzle as it lies at the start."""

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return cls.generator.num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return cls.generator.tasks(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return cls.generator.task(task_id).info

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        task = self.generator.task(task_id)
        resolved = self.spec.resolve_knobs(knobs, fixed=task.parameters)
        self._lists_actions = bool(resolved.get(ADMISSIBLE_ACTIONS.name, False))
        self._puzzle = puzzle = self.begin(task, seed, resolved)
        return self._transition(puzzle, f"{puzzle.rules}\n\n{puzzle.view()}")

    def step(self, action: str) -> Transition:
        puzzle = self._puzzle
        if puzzle is None:
            raise RuntimeError("step before reset")
        if puzzle.is_won or puzzle.is_lost:
            raise RuntimeError("step after the end of the episode")
        before = puzzle.score
        try:
            if len(action) > MAX_ACTION_CHARS:
                raise InvalidActionError(f"Give an action of at most {MAX_ACTION_CHARS} characters.")
            answer, is_valid = puzzle.act(action), True
        except InvalidActionError as error:
            answer, is_valid = str(error), False
        text = f"{answer}\n{puzzle.view()}"
        return self._transition(puzzle, text, reward=puzzle.score - before, is_valid=is_valid)

    def oracle(self) -> str | None:
        puzzle = self._puzzle
        return None if puzzle is None or puzzle.is_won or puzzle.is_lost else puzzle.expert_action()

    def close(self) -> None:
        self._puzzle = None

    def _transition(
        self, puzzle: Puzzle, text: str, *, reward: float = 0.0, is_valid: bool = True
    ) -> Transition:  # fmt: skip
        return Transition(
            observation=text,
            reward=reward,
            score=puzzle.score,
            success=puzzle.is_won,
            is_terminal=puzzle.is_won or puzzle.is_lost,
            action_valid=is_valid,
            progress=puzzle.progress(),
            admissible_actions=puzzle.admissible_actions() if self._lists_actions else None,
            state_hash=hashlib.blake2b(puzzle.state().encode(), digest_size=16).digest(),
        )


def puzzle_spec(
    generator: Generator,
    *,
    action_format: str,
    max_turns: int,
    description: str,
    knobs: tuple[KnobSpec, ...] = (),
    has_progress: bool = True,
) -> EnvironmentSpec:
    """The spec of a puzzle environment: own, exact, scored from 0 to 1. The task id fixes the generator's knobs."""
    names = ", ".join(spec.name for spec in generator.parameters)
    return EnvironmentSpec(
        name=generator.name,
        version=str(generator.version),
        data_hash=generator.data_hash,
        action_format=action_format,
        max_turns=max_turns,
        knobs=(*generator.parameters, *knobs),
        determinism=Determinism.EXACT,
        is_forkable=True,
        splits=SPLITS,
        has_oracle=True,
        has_progress=has_progress,
        licence="Apache-2.0",
        description=f"{description} Fixed by the task id, and filters of the list: {names}.",
    )


def read_moves(action: str, known: Mapping[str, str], limit: int) -> list[str]:
    """The moves of an action, separated by commas, each a key of `known` in any case; its values are given.

    Raises `InvalidActionError` unless there are 1 to `limit` of them.
    """
    if action in known:
        return [known[action]]
    words = [word.strip(" \t\r\n.").lower() for word in action.split(",")]
    moves = [known[word] for word in words if word in known]
    if len(moves) != len(words) or len(moves) > limit:
        raise InvalidActionError(f"Not an action. {moves_format(tuple(dict.fromkeys(known.values())), limit)}")
    return moves


def moves_format(moves: Sequence[str], limit: int) -> str:
    """The sentence that states the format of `read_moves`."""
    names = ", ".join(moves)
    return f"Action: one of {names}." if limit == 1 else f"Action: 1 to {limit} of {names}, separated by commas."
