"""Env servers in processes of their own, so that tests can kill and restart them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FAULTY = "env_server.environments.faulty:FaultyEnvironment"


class ServerProcess:
    """One `python -m env_server`."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        settings: Sequence[str] = (),
        environments: Sequence[str] = ("echo", FAULTY),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ready = folder / "ready.json"
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "env_server", "--workers", "1"]
        command += [word for name in environments for word in ("--env", name)]
        command += ["--port", str(port), "--ready-file", str(self._ready)]
        command += [part for setting in settings for part in ("--set", setting)]
        with (folder / "stderr.log").open("w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, cwd=ROOT, stderr=log, env=environment)
        self.address = self._wait_ready(folder / "stderr.log")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def _wait_ready(self, log: Path) -> str:
        try:
            wait_until(lambda: self._ready.exists() or self._process.poll() is not None)
            assert self._process.poll() is None, f"the env server did not start: {log.read_text()}"
        except AssertionError:
            self.kill()
            raise
        return str(json.loads(self._ready.read_text())["address"])

    def signal(self, number: int) -> None:
        """Send a signal to the server, and none to its workers."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=30)


@contextmanager
def server_process(
    folder: Path, *, port: int = 0, settings: Sequence[str] = (), environments: Sequence[str] = ("echo", FAULTY)
) -> Iterator[ServerProcess]:
    """A server that is gone afterwards."""
    server = ServerProcess(folder, port=port, settings=settings, environments=environments)
    try:
        yield server
    finally:
        server.stop()
