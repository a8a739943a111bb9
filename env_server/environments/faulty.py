"""The echo environment with faults on request, for tests of the server and its clients."""

import dataclasses
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import ClassVar

from env_server.environment import (
    Determinism,
    EnvironmentBrokenError,
    EnvironmentSpec,
    KnobSpec,
    KnobValue,
    Transition,
    switch,
)
from env_server.environments.echo import EchoEnvironment

CRASH_EXIT_STATUS = 70
CROWD = 8
_LONG_CHARS = 1000


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
    switch("is_drifting", "another state hash on every replay"),
    switch("is_hash_constant", "the same state hash always"),
    switch("is_crowded", f"another state hash while more than {CROWD} episodes live in the process"),
    switch("is_fussy", "raise EnvironmentBrokenError at an action that is empty, long or not printable ASCII"),
    switch("is_generous", "every word is the right one"),
    switch("is_oracle_wrong", "the oracle says the wrong word"),
    switch("is_score_off", "the score is half of what the rewards add up to"),
    switch("has_orphan", "start a process that outlives the server by a minute, once per worker"),
    KnobSpec(
        name="leaked_kib",
        kind="int",
        default=0,
        minimum=0,
        maximum=65_536,
        description="memory that each reset keeps for ever",
    ),
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
        description="Echo with faults on request: errors, crashes, hangs, leaks, and every promise broken once.",
    )

    _num_alive: ClassVar[int] = 0
    _leaked: ClassVar[list[bytes]] = []
    _orphan: ClassVar[subprocess.Popen[bytes] | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._knobs: Mapping[str, KnobValue] = {}
        self._steps = 0
        self._is_alive = False

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        self._knobs = self.spec.resolve_knobs(knobs)
        self._steps = 0
        self._count(is_alive=True)
        time.sleep(float(self._knobs["reset_sleep_ms"]) / 1000)
        FaultyEnvironment._leaked.append(b"x" * (1024 * int(self._knobs["leaked_kib"])))
        if self._knobs["has_orphan"] and FaultyEnvironment._orphan is None:
            FaultyEnvironment._orphan = subprocess.Popen(["sleep", "60"], start_new_session=True)
        return self._afflicted(super().reset(task_id, seed, knobs))

    def step(self, action: str) -> Transition:
        self._steps += 1
        is_odd = not action.isascii() or not action.isprintable() or not 0 < len(action) <= _LONG_CHARS
        if self._knobs["is_fussy"] and is_odd:
            raise EnvironmentBrokenError(f"broken by an odd action of {len(action)} characters")
        return self._afflicted(super().step(self._word() if self._knobs["is_generous"] else action))

    def oracle(self) -> str | None:
        return "silence" if self._knobs["is_oracle_wrong"] else super().oracle()

    def close(self) -> None:
        self._count(is_alive=False)

    def _count(self, *, is_alive: bool) -> None:
        FaultyEnvironment._num_alive += is_alive - self._is_alive
        self._is_alive = is_alive

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
        if self._knobs["is_score_off"]:
            transition = dataclasses.replace(transition, score=transition.score / 2)
        return dataclasses.replace(transition, state_hash=self._afflicted_hash(transition.state_hash))

    def _afflicted_hash(self, state_hash: bytes) -> bytes:
        if self._knobs["is_drifting"]:
            return os.urandom(16)
        if self._knobs["is_hash_constant"]:
            return bytes(16)
        is_crowd = self._knobs["is_crowded"] and FaultyEnvironment._num_alive > CROWD
        return state_hash[::-1] if is_crowd else state_hash

    def _is_due(self, fault: str) -> bool:
        return self._knobs[f"{fault}_at_turn"] == self._steps
