"""Outside: hands a program to the launcher and takes its report. May be used from any thread."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from env_server.sandbox.records import Case, Limits, Order, Outcome, Report

_ROOT = Path(__file__).resolve().parents[2]
_GRACE_S = 15.0
_VARIABLES = {"PYTHONPATH": str(_ROOT), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}


class SandboxError(Exception):
    """The sandbox could not be set up, or died; nothing is known of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Runs programs behind the given layers; a layer that cannot be had is an error, never left out."""

    layers: frozenset[str]
    limits: Limits = field(default_factory=Limits)

    def run(self, program: str, cases: tuple[Case, ...]) -> tuple[Outcome, ...]:
        """One outcome per case. After a run that met a time limit the rest is not run."""
        order = Order(program=program, cases=cases, limits=self.limits, layers=self.layers)
        outcomes = launch(order).outcomes
        if len(outcomes) != len(cases):
            raise SandboxError(f"{len(outcomes)} outcomes for {len(cases)} cases")
        return outcomes


def launch(order: Order) -> Report:
    """Carry out one order; raise SandboxError if the launcher does not answer."""
    # -S: no site-packages; -s -P: no folder of the user's, nor the current one.
    command = [sys.executable, "-s", "-S", "-P", "-m", "env_server.sandbox.launcher"]
    try:
        done = subprocess.run(
            command,
            input=order.pack(),
            capture_output=True,
            check=False,
            cwd="/",
            env=_VARIABLES,
            timeout=order.limits.total_s + _GRACE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"the sandbox did not answer within {error.timeout:g} s") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise SandboxError(f"the sandbox ended with status {done.returncode}: {lines[-1] if lines else 'no message'}")
    try:
        return Report.unpack(done.stdout)
    except ValueError as error:
        raise SandboxError(f"the sandbox gave no whole report: {error}") from error
