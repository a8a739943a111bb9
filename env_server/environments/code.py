"""Programming problems: submit whole programs, hear which tests fail, submit again.

Programs run in `env_server.sandbox`. Where the machine cannot shut them in, the environment refuses to start unless
the server is told `--insecure-sandbox`. A program whose output depends on chance or time breaks the exactness of its
own episode: after a crash of the worker it is lost, never silently different.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from env_server.environment import (
    Determinism,
    EnvironmentBrokenError,
    EnvironmentSpec,
    KnobError,
    KnobSpec,
    KnobValue,
    TaskInfo,
    Transition,
    switch,
)
from env_server.environments.code_data import SPLITS, own_data_hash, problem_set
from env_server.environments.code_feedback import TestResult, counted, example
from env_server.environments.code_problems import Problem, ProblemTest, unfenced
from env_server.environments.episodes import Episode, EpisodicEnvironment
from env_server.sandbox.isolation import INSECURE_VARIABLE, isolation
from env_server.sandbox.records import Limits, Outcome
from env_server.sandbox.sandbox import Sandbox, SandboxError

MAX_PROGRAM_CHARS = 65_536
NO_PROGRAM = (
    f"That holds no program. Send a whole Python program of at most {MAX_PROGRAM_CHARS} characters, plain or in a "
    "```python block."
)

KNOBS = (
    KnobSpec(
        name="max_submissions", kind="int", default=5, minimum=1, maximum=100, description="programs that may be sent"
    ),
    KnobSpec(
        name="reward",
        kind="choice",
        default="share",
        choices=("share", "all"),
        description="share: the best share of tests passed so far; all: 1 if every test passes, else 0",
    ),
    KnobSpec(
        name="feedback",
        kind="choice",
        default="failure",
        choices=("failure", "count", "none"),
        description="after a submission: the first failure and the count, the count alone, or nothing",
    ),
    switch("reveals_tests", "show input and expected output of a failed hidden test too"),
    KnobSpec(
        name="max_tests",
        kind="int",
        default=15,
        minimum=1,
        maximum=1000,
        description="of more tests, those with the longest inputs are taken",
    ),
    KnobSpec(name="cpu_s", kind="int", default=4, minimum=1, maximum=20, description="CPU seconds of each test"),
    KnobSpec(
        name="memory_mb", kind="int", default=512, minimum=64, maximum=8192, description="address space of a program"
    ),
)


class CodeEnvironment(EpisodicEnvironment):
    """One problem at a time."""

    spec = EnvironmentSpec(
        name="code",
        version="1",
        data_hash=own_data_hash(),
        action_format="A whole Python 3 program, plain or in a ```python block.",
        max_turns=20,
        knobs=KNOBS,
        determinism=Determinism.EXACT,
        is_forkable=True,
        is_thread_safe=False,  # one program at a time per worker: they compete for the CPU that their limit counts
        splits=SPLITS,
        has_oracle=True,
        has_progress=True,
        random_success_ceiling=0.0,
        licence="Apache-2.0",
        description="Programming problems with hidden tests, several submissions per episode. List filters: `kind`.",
    )

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return len(_listed(split, filters or {}))

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return _listed(split, filters or {})[max(start, 0) : start + count]

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        problems = problem_set()
        return problems.info(problems.entry(task_id))

    @classmethod
    def warm_up(cls) -> None:
        """Index the problems and try the sandbox; raise EnvironmentBrokenError where it cannot shut programs in."""
        problems = problem_set()
        cls.spec = replace(
            cls.spec,
            data_hash=problems.data_hash,
            splits=problems.splits,
            has_oracle=problems.has_solutions,
        )
        _secured()

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        problem = problem_set().problem(task_id)
        self._episode = episode = _Episode(problem, self.spec.resolve_knobs(knobs), _secured())
        return episode.start(task_id)


class _Episode(Episode):
    """A problem and what was submitted for it."""

    def __init__(self, problem: Problem, knobs: Mapping[str, KnobValue], layers: frozenset[str]) -> None:
        self._problem = problem
        self._tests = _chosen(problem.tests, int(knobs["max_tests"]))
        self._knobs = knobs
        limits = Limits(cpu_s=int(knobs["cpu_s"]), memory_bytes=int(knobs["memory_mb"]) * 2**20)
        self._sandbox = Sandbox(layers=layers, limits=limits)
        self._num_submitted = 0
        self._best = 0.0
        self._hash = b""

    @property
    def _num_left(self) -> int:
        return int(self._knobs["max_submissions"]) - self._num_submitted

    @property
    def _score(self) -> float:
        return float(self._best == 1.0) if self._knobs["reward"] == "all" else self._best

    def start(self, task_id: str) -> Transition:
        self._hash = task_id.encode()
        return self._transition(self._assignment(), 0.0)

    def step(self, action: str) -> Transition:
        if self._best == 1.0 or self._num_left == 0:
            raise RuntimeError("step after the end of the episode")
        program = _program(action)
        if program is None:
            return self._transition(NO_PROGRAM, self._score, action=action, is_valid=False)
        outcomes = self._run(program)
        results = [TestResult(test=test, outcome=outcome) for test, outcome in zip(self._tests, outcomes, strict=True)]
        before = self._score
        self._num_submitted += 1
        self._best = max(self._best, sum(result.has_passed for result in results) / len(results))
        return self._transition(self._feedback(results), before, action=action)

    def oracle(self) -> str | None:
        """The reference solution."""
        return self._problem.solution

    def _run(self, program: str) -> Sequence[Outcome]:
        try:
            return self._sandbox.run(program, tuple(test.case for test in self._tests))
        except SandboxError as error:
            raise EnvironmentBrokenError(str(error)) from error

    def _transition(self, text: str, before: float, *, action: str = "", is_valid: bool = True) -> Transition:
        seen = self._hash + action.encode("utf-8", "surrogatepass") + b"\0" + text.encode()
        self._hash = hashlib.blake2b(seen, digest_size=16).digest()
        return Transition(
            observation=text,
            reward=self._score - before,
            score=self._score,
            success=self._best == 1.0,
            is_terminal=self._best == 1.0 or self._num_left == 0,
            action_valid=is_valid,
            progress=self._best,
            state_hash=self._hash,
        )

    def _assignment(self) -> str:
        problem, knobs = self._problem, self._knobs
        public = [test for test in self._tests if test.is_public]
        parts = [problem.statement, *(example(number, test) for number, test in enumerate(public, start=1))]
        if problem.starter:
            parts.append(f"Begin with:\n{problem.starter}")
        what = f"that defines {problem.function}" if problem.function else "that reads stdin and writes stdout"
        parts.append(
            f"Answer with a whole Python 3 program {what}, with the standard library only. Each of {len(self._tests)} "
            f"tests may take {knobs['cpu_s']} s of CPU time and {knobs['memory_mb']} MB. You have "
            f"{counted(self._num_left, 'submission')}."
        )
        return "\n\n".join(parts)

    def _feedback(self, results: Sequence[TestResult]) -> str:
        num_passed = sum(result.has_passed for result in results)
        if num_passed == len(results):
            return f"All {len(results)} tests passed."
        lines: list[str] = []
        if self._knobs["feedback"] != "none":
            lines.append(f"{num_passed} of {len(results)} tests passed.")
        if self._knobs["feedback"] == "failure":
            number, first = next((n, r) for n, r in enumerate(results, start=1) if not r.has_passed)
            lines.append(first.describe(number, is_shown=first.test.is_public or bool(self._knobs["reveals_tests"])))
        lines.append(f"Not solved. {counted(self._num_left, 'submission')} left.")
        return "\n".join(lines)


def _listed(split: str, filters: Mapping[str, str]) -> list[TaskInfo]:
    problems = problem_set()
    if split not in problems.by_split:
        raise KnobError("split", f"code has no split {split!r}; splits are {', '.join(problems.by_split)}")
    infos = [problems.info(entry) for entry in problems.by_split[split]]
    for name, wanted in filters.items():
        if name != "kind":
            raise KnobError(name, f"code has no filter {name!r}; filters: kind")
        infos = [info for info in infos if info.kind == wanted]
    return infos


def _secured() -> frozenset[str]:
    """The sandbox's layers; EnvironmentBrokenError if they leave a door open and nobody said that they may."""
    try:
        here = isolation()
    except SandboxError as error:
        raise EnvironmentBrokenError(f"the sandbox does not work on this machine: {error}") from error
    if not here.is_whole and os.environ.get(INSECURE_VARIABLE) != "1":
        raise EnvironmentBrokenError(
            f"{here.explain()}; allow user namespaces or Landlock on this machine, or serve with --insecure-sandbox "
            "(env_server.insecure_sandbox = true) if every program that will come is harmless"
        )
    return here.layers


def _program(action: str) -> str | None:
    """The program in an action; None where there is none that could run."""
    if len(action) > MAX_PROGRAM_CHARS:
        return None
    program = unfenced(action).strip()
    try:
        program.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None
    return program if program and "\0" not in program else None


def _chosen(tests: Sequence[ProblemTest], most: int) -> Sequence[ProblemTest]:
    """At most so many tests in their order: the public ones, then those with the longest inputs."""
    ranks = sorted(range(len(tests)), key=lambda index: (not tests[index].is_public, -_size(tests[index]), index))
    return [tests[index] for index in sorted(ranks[:most])]


def _size(test: ProblemTest) -> int:
    return len(test.case.arguments if test.case.function else test.case.stdin)
