"""Keeps daemons running: a daemon that dies is started again, visibly and a bounded number of times.

A daemon that ends with an error that has a name is not: it would only end with it again.

Invariant: every child started here is in `_daemons` or was stopped; `close` stops them all. One thread uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from longturn.errors import LongturnError
from longturn.launch.child import Child, ChildFiles, stop_all

Facts = Mapping[str, object]

NAMED_ERROR = 2
"""Exit code of every command that ends with one clear line (longturn/cli.py). Waiting for a peer is behind it by then:
daemons have budgets of their own for that."""


class DaemonFailedError(LongturnError):
    """A daemon ended with an error that has a name, or by itself too often, or did not become ready."""

    reason = "DAEMON_FAILED"


class InterruptedRunError(LongturnError):
    """The user asked to stop."""

    reason = "INTERRUPTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpec:
    """How a daemon is started."""

    name: str
    command: Callable[[Facts | None, int], Sequence[str]]
    """Command line from the facts of its last ready file (None at first) and the number of earlier starts."""
    files: ChildFiles
    ready_timeout_s: float = 120.0
    max_restarts: int = 3
    ends_by_itself: bool = False
    """Whether exit code 0 means that its work is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShot:
    """A command that ends by itself; `variables` are added to its environment."""

    name: str
    command: Sequence[str]
    files: ChildFiles
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: str = ""
    """Where the settings lie from which its command line was made, such as tasks.train.mix."""
    result: Path | None = None
    """A file that, once it is there, is the command's answer, whatever its exit code: who reads it judges it."""


@dataclass(slots=True, kw_only=True)
class _Daemon:
    spec: DaemonSpec
    child: Child
    num_restarts: int = 0
    facts: Facts | None = None
    is_done: bool = False


class Supervisor:
    """Starts, watches, restarts and ends daemons and one-shot commands."""

    def __init__(
        self,
        *,
        wait: Callable[[float], bool],
        say: Callable[[str], None],
        grace_s: float = 15.0,
        restart_delay_s: float = 1.0,
    ) -> None:
        """`wait` sleeps and returns True once the user asked to stop; `say` shows a line to the user."""
        self._wait = wait
        self._say = say
        self._grace_s = grace_s
        self._restart_delay_s = restart_delay_s
        self._daemons: dict[str, _Daemon] = {}
        self.num_restarts: dict[str, int] = {}

    def start(self, spec: DaemonSpec) -> None:
        """Start a daemon without waiting for it."""
        child = Child(spec.name, spec.command(None, 0), spec.files)
        self._daemons[spec.name] = _Daemon(spec=spec, child=child)

    def is_running(self, name: str) -> bool:
        """Whether the daemon was started and neither stopped nor done."""
        daemon = self._daemons.get(name)
        return daemon is not None and not daemon.is_done

    def facts(self, name: str) -> Facts | None:
        """What the daemon's newest ready file said; None before that, or if it does not run."""
        daemon = self._daemons.get(name)
        return None if daemon is None or daemon.is_done else daemon.facts

    def start_and_wait(self, spec: DaemonSpec) -> Facts:
        """Start a daemon and return what its ready file says."""
        self.start(spec)
        return self.await_ready(spec.name)

    def await_ready(self, name: str) -> Facts:
        """Wait until the daemon serves; raise DaemonFailedError if it ends or takes too long."""
        daemon = self._daemons[name]
        while (facts := self._facts(daemon)) is None:
            if daemon.is_done:
                raise DaemonFailedError(f"{name} ended before it served (log: {daemon.spec.files.stderr})")
            self.tick()
            waited_s = time.monotonic() - daemon.child.started_s
            if waited_s > daemon.spec.ready_timeout_s:
                raise DaemonFailedError(
                    f"{name} did not become ready in {waited_s:.0f} s; see {daemon.spec.files.stderr}, or raise"
                    " run.ready_timeout_s"
                )
        return facts

    def tick(self, seconds: float = 0.1) -> None:
        """Let time pass, restart what crashed.

        Raises InterruptedRunError if the user asked to stop, DaemonFailedError if a daemon ended with an error that has
        a name or crashed too often.
        """
        if self._wait(seconds):
            raise InterruptedRunError("stopped by the user")
        for daemon in self._daemons.values():
            self._facts(daemon)
            code = daemon.child.exit_code()
            if code is None or daemon.is_done:
                continue
            if code == 0 and daemon.spec.ends_by_itself:
                daemon.child.kill()
                daemon.is_done = True
            else:
                self._restart(daemon, code)

    def stop(self, *names: str) -> None:
        """End these daemons together."""
        daemons = [self._daemons.pop(name) for name in names if name in self._daemons]
        stop_all([daemon.child for daemon in daemons], grace_s=self._grace_s)

    def run(self, command: OneShot, *, each_tick: Callable[[], None] = lambda: None) -> None:
        """Run a one-shot command to its end beside the daemons; raise DaemonFailedError unless it exits with 0."""
        self.run_all([command], each_tick=each_tick)

    def run_all(self, commands: Sequence[OneShot], *, each_tick: Callable[[], None] = lambda: None) -> None:
        """Run one-shot commands side by side to their ends. The first to fail ends the others and is raised."""
        children: list[Child] = []
        failed: tuple[OneShot, Child] | None = None
        try:
            for shot in commands:
                children.append(Child(shot.name, shot.command, shot.files, variables=shot.variables))
            while (failed := _first_failed(commands, children)) is None and any(map(_is_running, children)):
                self.tick()
                each_tick()
        finally:
            stop_all(children, grace_s=self._grace_s)
        if failed is not None:
            shot, child = failed
            raise _failure(child, shot.settings)

    def close(self) -> None:
        """End everything."""
        self.stop(*self._daemons)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _facts(self, daemon: _Daemon) -> Facts | None:
        facts = daemon.child.ready()
        if facts is not None:
            daemon.facts = facts
        return facts

    def _restart(self, daemon: _Daemon, code: int) -> None:
        spec, child = daemon.spec, daemon.child
        child.kill()
        has_served = daemon.facts is not None
        if code == NAMED_ERROR or not has_served or daemon.num_restarts >= spec.max_restarts:
            raise _failure(child)
        event = f"{spec.name} {_ending(child)}; restart {daemon.num_restarts + 1} of {spec.max_restarts}"
        # Also a test whether the disk has room: without, each start would only crash again.
        child.note(event)
        self._say(event)
        daemon.num_restarts += 1
        self.num_restarts[spec.name] = self.num_restarts.get(spec.name, 0) + 1
        if self._wait(self._restart_delay_s):
            raise InterruptedRunError("stopped by the user")
        daemon.child = Child(spec.name, spec.command(daemon.facts, daemon.num_restarts), spec.files)


def _is_running(child: Child) -> bool:
    return child.exit_code() is None


def _first_failed(commands: Sequence[OneShot], children: Sequence[Child]) -> tuple[OneShot, Child] | None:
    for shot, child in zip(commands, children, strict=True):
        has_result = shot.result is not None and shot.result.exists()
        if child.exit_code() not in (None, 0) and not has_result:
            return shot, child
    return None


def _failure(child: Child, settings: str = "") -> DaemonFailedError:
    """The error of a child that ended; DiskError in its place if its own words may have found no room."""
    ending = _ending(child)
    child.note(f"{child.name} {ending}")
    source = f" (settings: {settings})" if settings else ""
    return DaemonFailedError(f"{child.name} {ending}{source} (log: {child.files.stderr})")


def _ending(child: Child) -> str:
    code = child.exit_code() or 0
    if code < 0:
        return f"ended by signal {-code}"
    words = child.last_words()
    return f"failed: {words}" if code == NAMED_ERROR else f"ended by exit code {code}: {words}"
