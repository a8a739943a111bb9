"""Environments with properties that the bundled ones lack; served by import path."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from env_server.environment import Determinism, EnvironmentSpec, KnobSpec, KnobValue, TaskInfo, Transition
from env_server.environments.echo import EchoEnvironment
from env_server.sandbox.isolation import INSECURE_VARIABLE


def _spec(name: str, **changes: object) -> EnvironmentSpec:
    return dataclasses.replace(EchoEnvironment.spec, name=name, **changes)  # type: ignore[arg-type]


class UnrepeatableEnvironment(EchoEnvironment):
    """Says that it cannot be replayed."""

    spec: ClassVar[EnvironmentSpec] = _spec("unrepeatable", determinism=Determinism.NONE, is_forkable=False)


class NewerEchoEnvironment(EchoEnvironment):
    """Echo on other data."""

    spec: ClassVar[EnvironmentSpec] = _spec("echo", data_hash="echo-2")


class _ArrayNumber:
    """What a 0-d or shape-(1,) array looks like from outside."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value


class RewardEnvironment(EchoEnvironment):
    """Gives the reward that the action names, in the type that it names, such as `bool 1`."""

    spec: ClassVar[EnvironmentSpec] = _spec("reward", is_thread_safe=False)
    kinds: ClassVar[Mapping[str, type]] = {"bool": bool, "int": int, "float": float, "array": _ArrayNumber}

    def step(self, action: str) -> Transition:
        kind, _, value = action.partition(" ")
        transition = super().step(action)
        return dataclasses.replace(transition, reward=self.kinds[kind](float(value)))


class InvalidActionEnvironment(EchoEnvironment):
    """Finds every action invalid."""

    spec: ClassVar[EnvironmentSpec] = _spec("invalid", is_thread_safe=False)

    def step(self, action: str) -> Transition:
        return dataclasses.replace(super().step(action), action_valid=False)


class MirrorEnvironment(EchoEnvironment):
    """Shows the action as the observation."""

    spec: ClassVar[EnvironmentSpec] = _spec("mirror", is_thread_safe=False)

    def step(self, action: str) -> Transition:
        return dataclasses.replace(super().step(action), observation=action)


class ParentEnvironment(EchoEnvironment):
    """Starts a child process in each episode and tells its id, as a Java-backed environment would."""

    spec: ClassVar[EnvironmentSpec] = _spec("parent", is_thread_safe=False)

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return dataclasses.replace(super().reset(task_id, seed, knobs), extras={"child_pid": str(child.pid)})


class PreparedEnvironment(EchoEnvironment):
    """Leaves a line in a file for each preparation; takes as long as a knob says."""

    spec: ClassVar[EnvironmentSpec] = _spec(
        "prepared",
        is_thread_safe=False,
        knobs=(
            *EchoEnvironment.spec.knobs,
            KnobSpec(name="is_hanging", kind="bool", default=False, description="never get ready"),
        ),
    )

    @classmethod
    def prepare(cls, task_id: str, knobs: Mapping[str, KnobValue], seed: int) -> None:
        if knobs.get("is_hanging"):
            subprocess.run(["sleep", "600"], check=True)
        with Path(os.environ["PREPARED_LOG"]).open("a") as log:
            log.write(f"{os.getpid()} {task_id}\n")


class UncloseableEnvironment(EchoEnvironment):
    """Raises when it is closed."""

    spec: ClassVar[EnvironmentSpec] = _spec("uncloseable", is_thread_safe=False)

    def close(self) -> None:
        raise OSError("the simulator's socket is gone")


class MalformedEnvironment(EchoEnvironment):
    """Breaks its contract as the action says; `oracle ...` does so with the next oracle."""

    spec: ClassVar[EnvironmentSpec] = _spec("malformed", is_thread_safe=False)

    def __init__(self) -> None:
        super().__init__()
        self._oracle: object = "amber"

    def step(self, action: str) -> Transition:
        transition = super().step(action)
        match action:
            case "nothing":
                return None  # type: ignore[return-value]  # the very fault
            case "surrogate":
                return dataclasses.replace(transition, observation="caf\udce9")
            case "surrogate error":
                raise RuntimeError("no file caf\udce9")
            case "oracle number":
                self._oracle = 7
            case "oracle surrogate":
                self._oracle = "caf\udce9"
        return transition

    def oracle(self) -> str | None:
        return self._oracle  # type: ignore[return-value]  # the very fault

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return [None]  # type: ignore[list-item]  # the very fault


class SlowStartEnvironment(EchoEnvironment):
    """Never gets ready; leaves a mark once it tries."""

    spec: ClassVar[EnvironmentSpec] = _spec("slow_start")

    @classmethod
    def warm_up(cls) -> None:
        if mark := os.environ.get("WARM_UP_MARK"):
            Path(mark).touch()
        subprocess.run(["sleep", "600"], check=True)


class BrokenStartEnvironment(EchoEnvironment):
    """Cannot be warmed up."""

    spec: ClassVar[EnvironmentSpec] = _spec("broken_start")

    @classmethod
    def warm_up(cls) -> None:
        raise RuntimeError("no simulator here")


def never_called() -> Sequence[str]:
    """Is no environment, for the test of bad import paths."""
    return ()


class TwiceListedEnvironment(EchoEnvironment):
    """Lists the tasks of every split in every split."""

    spec: ClassVar[EnvironmentSpec] = _spec("twice_listed")

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return super().tasks("train", start, count, filters)


class VariableEnvironment(EchoEnvironment):
    """Tells a variable of its process's environment."""

    spec: ClassVar[EnvironmentSpec] = _spec("variable")

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        told = {INSECURE_VARIABLE: os.environ.get(INSECURE_VARIABLE, "")}
        return dataclasses.replace(super().reset(task_id, seed, knobs), extras=told)
