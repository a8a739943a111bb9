"""The echo environment with faults on request, for tests of the server and its clients."""

import dataclasses
import os
import threading
import time
from collections.abc import Mapping
from typing import ClassVar

from env_server.environment import Determinism, EnvironmentBrokenError, EnvironmentSpec, KnobSpec, KnobValue, Transition
from env_server.environments.echo import EchoEnvironment

CRASH_EXIT_STATUS = 70


def _at_turn(name: str, description: str) -> KnobSpec:
    return KnobSpec(
        name=f"{name}_at_turn",
        kind="int",
        default=-1,
        minimum=-1,
        maximum=1_000_000,
        description=f"{description}; 0 is the reset, 1 the first step, -1 never",
    )


KNOBS = (
    _at_turn("fail", "raise EnvironmentBrokenError"),
    _at_turn("raise", "raise an error of no known kind"),
    _at_turn("crash", f"end the process with status {CRASH_EXIT_STATUS}"),
    _at_turn("hang", "never return"),
    _at_turn("nan", "give NaN as the reward"),
    KnobSpec(name="is_drifting", kind="bool", default=False, description="another state hash on every replay"),
    KnobSpec(
        name="reset_sleep_ms",
        kind="float",
        default=0.0,
        minimum=0.0,
        maximum=600_000.0,
        description="time reset sleeps",
    ),
)


class FaultyEnvironment(EchoEnvironment):
    """Echo that breaks where its knobs say."""

    spec: ClassVar[EnvironmentSpec] = dataclasses.replace(
        EchoEnvironment.spec,
        name="faulty",
        data_hash="faulty-1",
        knobs=EchoEnvironment.spec.knobs + KNOBS,
        determinism=Determinism.EXACT,
        is_thread_safe=False,
        description="Echo with faults on request: errors, crashes, hangs, NaN rewards, drifting replays.",
    )

    def __init__(self) -> None:
        super().__init__()
        self._knobs: Mapping[str, KnobValue] = {}
        self._steps = 0

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        self._knobs = self.spec.resolve_knobs(knobs)
        self._steps = 0
        time.sleep(float(self._knobs["reset_sleep_ms"]) / 1000)
        return self._afflicted(super().reset(task_id, seed, knobs))

    def step(self, action: str) -> Transition:
        self._steps += 1
        return self._afflicted(super().step(action))

    def _afflicted(self, transition: Transition) -> Transition:
        if self._is_due("fail"):
            raise EnvironmentBrokenError(f"broken on request at turn {self._steps}")
        if self._is_due("raise"):
            raise ZeroDivisionError(f"raised on request at turn {self._steps}")
        if self._is_due("crash"):
            os._exit(CRASH_EXIT_STATUS)
        if self._is_due("hang"):
            threading.Event().wait()
        if self._is_due("nan"):
            transition = dataclasses.replace(transition, reward=float("nan"))
        return dataclasses.replace(transition, state_hash=os.urandom(16)) if self._knobs["is_drifting"] else transition

    def _is_due(self, fault: str) -> bool:
        return self._knobs[f"{fault}_at_turn"] == self._steps
