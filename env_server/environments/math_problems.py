"""Mathematical word problems with several tries: generated ones, or those of files that the server was pointed to.

The files' path is the server's business: the environment variable `LONGTURN_MATH_DATA` of its process. No request can
name a file.
"""

import dataclasses
import os
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
)
from env_server.environments.digests import state_hash
from env_server.environments.math_answers import final_answer, parse_number, same_answer
from env_server.environments.math_files import MathFiles, read_files
from env_server.environments.task_table import SPLITS, TaskTable
from env_server.environments.word_problems import GENERATOR_VERSION, STEPS, MathProblem, generate

DATA_VARIABLE = "LONGTURN_MATH_DATA"
MAX_ACTION_CHARS = 4000

_GENERATED = TaskTable(
    "math",
    {f"generated/steps={steps}": {"steps": steps} for steps in STEPS},
    {"train": 100_000, "valid": 10_000, "test": 10_000},
)
_SPEC = EnvironmentSpec(
    name="math",
    version=str(GENERATOR_VERSION),
    data_hash=f"math-generated-{GENERATOR_VERSION}",
    action_format="The answer alone, such as 18, 1,000, 2.50 or \\frac{3}{4}; or a solution that ends in \\boxed{18}.",
    max_turns=20,
    knobs=(
        KnobSpec(name="tries", kind="int", default=5, minimum=1, maximum=20, description="answers before it is over"),
    ),
    determinism=Determinism.EXACT,
    is_forkable=True,
    splits=SPLITS,
    has_oracle=True,
    licence="Apache-2.0 (generated problems); files have their own",
    description="Word problems: a right answer earns 1, halved by each try before it. Generated problems have the "
    f"list filter `steps`; with {DATA_VARIABLE} set in the server's environment the tasks are those of the files.",
)


class MathEnvironment(Environment):
    """One problem at a time. Ids are `generated/steps=N/SPLIT/INDEX`, or `file/SPLIT/INDEX` with files.

    Every step is a try. An action is invalid where it holds no answer, or none that is a number where a number is asked
    for; success is a right answer.
    """

    spec: ClassVar[EnvironmentSpec] = _SPEC

    def __init__(self) -> None:
        self._problem = MathProblem(question="", answer="")
        self._tries = 0
        self._num_tried = 0
        self._is_over = True

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return _table().num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return _table().page(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return _table().find(task_id).info

    @classmethod
    def warm_up(cls) -> None:
        """Read the files, where there are any, and name their content in the spec."""
        files = _files()
        cls.spec = dataclasses.replace(_SPEC, data_hash=files.data_hash) if files else _SPEC

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """The task alone fixes the problem; the seed changes nothing."""
        key = _table().find(task_id)
        self._tries = int(self.spec.resolve_knobs(knobs)["tries"])
        self._num_tried, self._is_over = 0, False
        files = _files()
        if files is not None:
            self._problem = files.problem(key.split, key.index)
        else:
            self._problem = generate(task_id, int(key.knobs["steps"]), key.split)
        return self._transition(self._problem.question, is_valid=True)

    def step(self, action: str) -> Transition:
        if self._is_over:
            raise RuntimeError("step without a running episode")
        given = final_answer(action) if _is_readable(action) else ""
        is_right = same_answer(given, self._problem.answer)
        reward = 0.5**self._num_tried if is_right else 0.0
        self._num_tried += 1
        self._is_over = is_right or self._num_tried >= self._tries
        is_valid = given != "" and (parse_number(given) is not None or parse_number(self._problem.answer) is None)
        return self._transition(self._reply(is_right=is_right, is_valid=is_valid), reward=reward, is_valid=is_valid)

    def oracle(self) -> str | None:
        """The answer."""
        return None if self._is_over else self._problem.answer

    def close(self) -> None:
        self._is_over = True

    def _reply(self, *, is_right: bool, is_valid: bool) -> str:
        if is_right:
            return "Correct!"
        text = "Incorrect." if is_valid else "That is no answer: give a number, such as 18, 2.50 or 3/4."
        num_left = self._tries - self._num_tried
        return f"{text} Please think again; tries left: {num_left}." if num_left else f"{text} No tries are left."

    def _transition(self, observation: str, *, is_valid: bool, reward: float = 0.0) -> Transition:
        return Transition(
            observation=observation,
            reward=reward,
            score=reward,
            success=reward > 0,
            is_terminal=self._is_over,
            action_valid=is_valid,
            state_hash=state_hash(self._problem.question, self._tries, self._num_tried, observation),
        )


def _files() -> MathFiles | None:
    path_text = os.environ.get(DATA_VARIABLE, "")
    return read_files(DATA_VARIABLE, path_text) if path_text else None


def _table() -> TaskTable:
    files = _files()
    return TaskTable("math", {"file": {}}, files.sizes) if files else _GENERATED


def _is_readable(action: str) -> bool:
    return len(action) <= MAX_ACTION_CHARS and all(part.isprintable() for part in action.split())
