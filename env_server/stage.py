"""The episodes that one worker process plays, and what they say about each step.

Nothing an environment raises passes this module: it becomes a `BrokenError`, so that one broken simulator never takes
its neighbours down.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, SupportsFloat, TypeVar, cast

from env_server.environment import (
    Environment,
    EnvironmentBrokenError,
    KnobError,
    KnobValue,
    TaskNotFoundError,
    Transition,
)
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)

RUNNING = environment_pb2.EPISODE_STATUS_RUNNING
TERMINATED = environment_pb2.EPISODE_STATUS_TERMINATED

INLINE_S = 0.0002
"""Shorter steps cost less than handing them to another thread."""

P = ParamSpec("P")
T = TypeVar("T")


class StageError(Exception):
    """A request that ends without a result."""

    def __init__(self, reason: str, message: str, **metadata: str | None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message.encode(errors="backslashreplace").decode()
        """What an environment says need not be valid Unicode; what crosses the hop is."""
        self.metadata = {name: value for name, value in metadata.items() if value is not None}

    def to_json(self) -> bytes:
        """As it crosses the hop."""
        return json.dumps({"reason": self.reason, "message": self.message, "metadata": self.metadata}).encode()


class BrokenError(StageError):
    """The environment broke: the episode is FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """What the server asks a worker to start."""

    environment: str
    task_id: str
    seed: int
    knobs: Mapping[str, KnobValue]
    with_progress: bool = False
    with_oracle: bool = False

    @classmethod
    def from_json(cls, payload: bytes) -> StartOrder:
        """Parse what `to_json` wrote."""
        return cls(**json.loads(payload))

    def to_json(self) -> bytes:
        """As it crosses the hop."""
        return json.dumps(
            {
                "environment": self.environment,
                "task_id": self.task_id,
                "seed": self.seed,
                "knobs": dict(self.knobs),
                "with_progress": self.with_progress,
                "with_oracle": self.with_oracle,
            }
        ).encode()


@dataclass(slots=True)
class Seat:
    """One episode in this process."""

    environment: Environment
    with_progress: bool
    with_oracle: bool
    is_thread_safe: bool
    step_s: float = math.inf
    """How long its quick steps take: falls at once and rises slowly, since a step may be slow by mere preemption."""


class Stage:
    """Plays episodes by key. Calls on different keys may come from different threads."""

    def __init__(self, environments: Mapping[str, type[Environment]]) -> None:
        self._environments = environments
        self._seats: dict[int, Seat] = {}

    def prefers_thread(self, key: int) -> bool:
        """Whether the episode's steps may run beside others, and take long enough to be worth the change of thread."""
        seat = self._seats.get(key)
        return seat is not None and seat.is_thread_safe and seat.step_s > INLINE_S

    def environment(self, name: str) -> type[Environment]:
        """The class of an environment this worker has loaded."""
        return self._environments[name]

    def start(self, key: int, order: StartOrder) -> environment_pb2.StepResult:
        """Begin an episode; raise StageError if it cannot be."""
        kind = self._environments[order.environment]
        environment = guarded(kind)
        seat = Seat(environment, order.with_progress, order.with_oracle, kind.spec.is_thread_safe)
        try:
            transition = guarded(environment.reset, order.task_id, order.seed, order.knobs)
            result = _message(seat, transition)
        except StageError:
            _close(environment)
            raise
        self._seats[key] = seat
        return result

    def step(self, key: int, action: str) -> environment_pb2.StepResult:
        """Apply one action; raise BrokenError if the environment breaks."""
        seat = self._seats[key]
        began_at_s = time.monotonic()
        transition = guarded(seat.environment.step, action)
        took_s = time.monotonic() - began_at_s
        seat.step_s = min(took_s, 1.25 * seat.step_s)
        return _message(seat, transition)

    def close(self, key: int) -> None:
        """Free an episode; unknown keys are ignored, since a start may have failed. An error is logged."""
        seat = self._seats.pop(key, None)
        if seat is not None:
            _close(seat.environment)


def guarded(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run environment code; whatever it raises becomes a StageError."""
    try:
        return call(*args, **kwargs)
    except TaskNotFoundError as error:
        raise StageError("TASK_NOT_FOUND", str(error), task_id=error.task_id, nearest=error.nearest) from error
    except KnobError as error:
        raise StageError("BAD_KNOB", str(error), knob=error.knob) from error
    except EnvironmentBrokenError as error:
        raise BrokenError("ENVIRONMENT_BROKEN", str(error)) from error
    except Exception as error:  # third-party code: its episode fails, the worker lives
        raise BrokenError("ENVIRONMENT_BROKEN", f"{type(error).__name__}: {error}") from error


def _close(environment: Environment) -> None:
    """Nobody waits for a close, and nothing is lost by one that fails but what the instance held."""
    try:
        guarded(environment.close)
    except StageError as error:
        logger.error("environment %s cannot be closed: %s", environment.spec.name, error.message)


def _message(seat: Seat, transition: Transition) -> environment_pb2.StepResult:
    """The worker's part of a step result; turn index, return and limits are the server's."""
    try:
        result = environment_pb2.StepResult(
            observation=transition.observation,
            reward=finite("reward", transition.reward),
            score=finite("score", transition.score),
            success=bool(transition.success),
            status=TERMINATED if transition.is_terminal else RUNNING,
            action_valid=bool(transition.action_valid),
            state_hash=transition.state_hash,
        )
        if transition.admissible_actions:
            result.admissible_actions.extend(transition.admissible_actions)
        if transition.extras:
            result.extras.update(transition.extras)
        if seat.with_progress and transition.progress is not None:
            result.progress = finite("progress", transition.progress)
        if seat.with_oracle and not transition.is_terminal:
            oracle_action = guarded(seat.environment.oracle)
            if oracle_action is not None:
                result.oracle_action = oracle_action
    except (AttributeError, TypeError, ValueError) as error:  # text that is no valid Unicode is a ValueError
        raise BrokenError("ENVIRONMENT_BROKEN", f"the transition is malformed: {error}") from error
    return result


def finite(name: str, value: object) -> float:
    """A number as a float: bool, int, float, or an array with a single item. Raise ValueError if it is not finite."""
    number = _number(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}")
    return number


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    item = cast("Callable[[], SupportsFloat] | None", getattr(value, "item", None))
    return float(item() if item is not None else cast(SupportsFloat, value))
