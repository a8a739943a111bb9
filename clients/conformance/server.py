"""The server under test: `longturn serve` with one worker, started through its command line."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clients.conformance import processes
from clients.conformance.processes import Usage
from longturn.errors import ConfigError
from longturn.launch.child import Child, ChildFiles, stop_all

_START_S = 300.0
_STOP_S = 30.0
_LOOK_S = 0.05
_WORKER, _PLAYS = "env_server.worker", '"is_preparer": false'
"""What the command line of a playing worker holds."""
_MARK = "LONGTURN_CONFORMANCE_MARK"
# No worker may be recycled while its growth is watched.
_SETTINGS = ("port=0", "num_workers=1", "recycle_episodes=0", "recycle_rss_bytes=0")


class CheckedServer:
    """A running server and its processes. All that it starts carries a mark that outlives the server."""

    def __init__(self, environment: str, folder: Path) -> None:
        """Start it and wait until it serves; raise ConfigError with its last words if it does not."""
        self.environment = environment
        self._mark = secrets.token_hex(16)
        command = [sys.executable, "-m", "longturn", "serve", "--env", environment]
        command += [part for setting in _SETTINGS for part in ("--set", setting)]
        ready = folder / "ready.json"
        files = ChildFiles(stdout=folder / "stdout.log", stderr=folder / "stderr.log", ready=ready)
        # Each process draws its own hash seed: an order that rests on it must not survive the suite.
        variables = {_MARK: self._mark, "PYTHONHASHSEED": "random"}
        self._child = Child("serve", [*command, "--ready-file", str(ready)], files, variables=variables)
        try:
            self.address = self._wait_ready()
        except BaseException:
            self._child.kill()
            raise

    def _wait_ready(self) -> str:
        deadline_s = time.monotonic() + _START_S
        while (facts := self._child.ready()) is None:
            if self._child.exit_code() is not None or time.monotonic() > deadline_s:
                raise ConfigError(f"the server of {self.environment} did not start: {self._last_words()}")
            time.sleep(_LOOK_S)
        return str(facts["address"])

    def worker(self) -> int:
        """Process id of the worker that plays; raise ConfigError if there is none."""
        workers = self._workers()
        if not workers:
            raise ConfigError(f"the server of {self.environment} has no worker: {self._last_words()}")
        return workers[0]

    def _workers(self) -> list[int]:
        commands = {pid: processes.command_line(pid) for pid in processes.children(self._child.pid)}
        return [pid for pid, words in commands.items() if _WORKER in words and _PLAYS in words[-1]]

    def kill_worker(self) -> None:
        """SIGKILL to the worker, and wait until the server has raised another."""
        killed = self.worker()
        os.kill(killed, signal.SIGKILL)
        if not _holds_within(lambda: any(pid != killed for pid in self._workers()), _START_S):
            raise ConfigError(f"the server of {self.environment} raised no new worker: {self._last_words()}")

    def worker_usage(self) -> Usage:
        """What the worker and everything below it hold."""
        return processes.usage(self.worker())

    def terminate(self) -> bool:
        """SIGTERM; whether it ended in time."""
        self._child.ask_to_end()
        return _holds_within(lambda: self._child.exit_code() is not None, _STOP_S)

    def kill(self) -> None:
        """SIGKILL to the server alone."""
        os.kill(self._child.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        return self._child.last_words().removeprefix("longturn: ")

    def leftovers(self, *, grace_s: float) -> list[int]:
        """Processes of this server, itself included, that are still there after a while; empty as soon as none is."""
        _holds_within(lambda: not self._alive(), grace_s)
        return self._alive()

    def _alive(self) -> list[int]:
        self._child.exit_code()  # takes a dead server off the process table
        return processes.marked(self._mark)

    def stop(self) -> None:
        """End it and everything that still carries its mark."""
        stop_all([self._child], grace_s=_STOP_S)
        for pid in self.leftovers(grace_s=5.0):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def checked_server(environment: str, folder: Path) -> Iterator[CheckedServer]:
    """A server that is gone afterwards."""
    server = CheckedServer(environment, folder)
    try:
        yield server
    finally:
        server.stop()


def _holds_within(is_true: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    return True
