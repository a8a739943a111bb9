"""What an environment is to the server: a small class behind `reset` and `step`.

An environment lives in a worker process and plays one episode at a time. A bad action is never an error: it is a
transition with `action_valid=False` and the environment's own answer. Exceptions mean that the request cannot be served
(`TaskNotFoundError`, `KnobError`) or that the simulator broke (`EnvironmentBrokenError`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import ClassVar

from longturn.errors import LongturnError
from longturn.knobs import KnobKind, KnobValueError, read_knob
from longturn.nearest import nearest_hint
from longturn.records import KnobValue

_EMPTY: Mapping[str, str] = MappingProxyType({})


class BaseEnvironmentError(LongturnError):
    """Root of what an environment may raise."""

    reason = "ENVIRONMENT_ERROR"


class TaskNotFoundError(BaseEnvironmentError):
    """No task has this id; the message names the nearest valid one."""

    reason = "TASK_NOT_FOUND"

    def __init__(self, task_id: str, *, nearest: str | None = None, reason: str = "") -> None:
        hint = f"; the nearest valid id is {nearest!r}" if nearest else ""
        super().__init__(f"no task {task_id!r}{': ' + reason if reason else ''}{hint}")
        self.task_id = task_id
        self.nearest = nearest


class KnobError(BaseEnvironmentError):
    """A knob is unknown or out of its range; the message names the range or the nearest valid name."""

    reason = "BAD_KNOB"

    def __init__(self, knob: str, message: str) -> None:
        super().__init__(message)
        self.knob = knob


class EnvironmentBrokenError(BaseEnvironmentError):
    """The simulator broke; the episode is FAILED, never a reward of 0."""

    reason = "ENVIRONMENT_BROKEN"


class Determinism(Enum):
    """How far (environment version, task id, knobs, seed, actions) fix the observations."""

    EXACT = "exact"
    UP_TO_ORDER = "up_to_order"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSpec:
    """One setting of an episode, with its range."""

    name: str
    kind: KnobKind
    default: KnobValue
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        if (self.kind == "choice") != bool(self.choices):
            raise ValueError(f"knob {self.name}: choices belong to kind 'choice' and only to it")
        if self.validate(self.default) != self.default:
            raise ValueError(f"knob {self.name}: default {self.default!r} has not the form of kind {self.kind}")

    def validate(self, value: KnobValue) -> KnobValue:
        """Return the value in the knob's own type; a string is read as its text form. Raise `KnobError` otherwise."""
        try:
            return read_knob(self, value)
        except KnobValueError as error:
            raise KnobError(self.name, f"knob {self.name} {error}") from error


def switch(name: str, description: str, *, default: bool = False) -> KnobSpec:
    """A setting that is on or off."""
    return KnobSpec(name=name, kind="bool", default=default, description=description)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What `ListEnvironments` says about an environment."""

    name: str
    version: str
    """Rises whenever an episode of the same (task id, knobs, seed) may differ."""
    data_hash: str
    """Fixes the data or the generator behind the tasks; a client pins it."""
    action_format: str
    """One line for prompts: what an action looks like."""
    max_turns: int
    """Default turn limit."""
    turn_limits: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    """Default turn limits of tasks that need another one, by the part of the task id before its first slash."""
    knobs: tuple[KnobSpec, ...] = ()
    determinism: Determinism = Determinism.EXACT
    is_forkable: bool = False
    """The environment can be rebuilt by replay and so be forked."""
    is_thread_safe: bool = False
    """A worker may run several episodes of it on threads at once."""
    score_min: float = 0.0
    score_max: float = 1.0
    splits: tuple[str, ...] = ("train",)
    has_oracle: bool = False
    has_progress: bool = False
    random_success_ceiling: float | None = None
    """Share of episodes that a random policy may win; the conformance suite holds it to this, or to 0.1 if None."""
    licence: str = ""
    """Of the simulator and its data."""
    description: str = ""

    def __post_init__(self) -> None:
        lowest = min([self.max_turns, *self.turn_limits.values()])
        if lowest < 1:
            raise ValueError(f"environment {self.name}: max_turns must be >= 1, got {lowest}")
        if self.score_min > self.score_max:
            raise ValueError(f"environment {self.name}: score range [{self.score_min}, {self.score_max}] is empty")
        ceiling = self.random_success_ceiling
        if ceiling is not None and not 0.0 <= ceiling <= 1.0:
            raise ValueError(f"environment {self.name}: random_success_ceiling must be in [0, 1], got {ceiling}")

    def turn_limit(self, task_id: str) -> int:
        """The turn limit of a task where nobody asks for another."""
        return self.turn_limits.get(task_id.partition("/")[0], self.max_turns)

    @property
    def is_replayable(self) -> bool:
        """Whether start and actions bring an episode back."""
        return self.determinism is not Determinism.NONE

    def resolve_knobs(
        self, given: Mapping[str, KnobValue], *, fixed: Mapping[str, KnobValue] = MappingProxyType({})
    ) -> dict[str, KnobValue]:
        """Every knob with its value: the task's, else the given one, else the default.

        Raises `KnobError` on an unknown name, a value out of range, or one that contradicts what the task fixes.
        """
        by_name = {knob.name: knob for knob in self.knobs}
        resolved = {knob.name: knob.default for knob in self.knobs} | dict(fixed)
        for name, value in given.items():
            if name not in by_name:
                raise KnobError(name, f"{self.name} has no knob {name!r}{nearest_hint(name, by_name)}")
            valid = by_name[name].validate(value)
            if name in fixed and valid != fixed[name]:
                raise KnobError(name, f"the task fixes knob {name} at {fixed[name]!r}; got {value!r}")
            resolved[name] = valid
        return resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """One entry of `ListTasks`."""

    task_id: str
    split: str
    kind: str
    """Task kind for reports, e.g. `coin_collector/116`."""
    knobs: Mapping[str, KnobValue] = field(default_factory=dict[str, KnobValue])
    """Knobs that the task fixes."""
    score_max: float | None = None
    """None where it is known only after the task is prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What `reset` and `step` return. The numbers are those after the action; `reward` is 0 after `reset`."""

    observation: str
    reward: float = 0.0
    score: float = 0.0
    """Cumulative, within the spec's score range."""
    success: bool = False
    """The environment's own goal test."""
    is_terminal: bool = False
    """The task itself ended, won or lost."""
    action_valid: bool = True
    progress: float | None = None
    """Privileged training signal in [0, 1], 1 at the goal; no part of success."""
    admissible_actions: tuple[str, ...] | None = None
    extras: Mapping[str, str] = field(default_factory=dict[str, str])
    state_hash: bytes
    """8 to 16 bytes; equal on replay of the same actions."""

    def __post_init__(self) -> None:
        if not 8 <= len(self.state_hash) <= 16:
            raise ValueError(f"state_hash has {len(self.state_hash)} bytes, expected 8 to 16")
        if self.progress is not None and not 0.0 <= self.progress <= 1.0:
            raise ValueError(f"progress must be in [0, 1], got {self.progress}")


class Environment(ABC):
    """One instance plays one episode at a time; `reset` may be called again after any number of steps.

    Class methods answer without starting a game. Constructing an instance is cheap and takes no arguments.
    """

    spec: ClassVar[EnvironmentSpec]

    @classmethod
    @abstractmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] = _EMPTY) -> int:
        """How many tasks `tasks` would list; may be huge."""

    @classmethod
    @abstractmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] = _EMPTY
    ) -> Sequence[TaskInfo]:
        """Tasks `start` to `start + count - 1` of a fixed order, fewer at its end; `KnobError` on a bad filter."""

    @classmethod
    @abstractmethod
    def task(cls, task_id: str) -> TaskInfo:
        """Look one task up, without starting it. Raises `TaskNotFoundError`."""

    @classmethod  # noqa: B027 - a hook, not a duty
    def prepare(cls, task_id: str, knobs: Mapping[str, KnobValue], seed: int) -> None:
        """Do the task's slow work (generate and cache a game); idempotent, safe in several processes at once."""

    @classmethod  # noqa: B027 - a hook, not a duty
    def warm_up(cls) -> None:
        """Do what may not race between threads; called once per worker process, before it says ready."""

    @abstractmethod
    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """Start an episode. Raises `TaskNotFoundError`, `KnobError` or `EnvironmentBrokenError`."""

    @abstractmethod
    def step(self, action: str) -> Transition:
        """Apply one action of any text. Raises `EnvironmentBrokenError` only."""

    def oracle(self) -> str | None:
        """The next expert action from the current state; None where none is known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free what the instance holds; idempotent."""
