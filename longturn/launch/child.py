"""One child process: its own session, its output in files, its end certain.

Invariant: whoever starts a Child calls `stop`; after that no process of its group is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longturn.disk import naming

_TAIL_BYTES = 8192
_SPEAKER = "longturn: "
"""What `longturn` writes before the one line of an error with a name (longturn/cli.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFiles:
    """Where a child's output goes, and where it says that it serves."""

    stdout: Path
    stderr: Path
    ready: Path


class Child:
    """A running command. SIGTERM goes to the command alone, so that it can end its own workers in order; SIGKILL goes
    to the whole group."""

    def __init__(
        self, name: str, command: Sequence[str], files: ChildFiles, *, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start `command`; output is appended to the files. `variables` are added to its environment.

        Raises DiskError if the files cannot be made.
        """
        self.name = name
        self.command = tuple(command)
        self.files = files
        tied = (sys.executable, "-m", "longturn.launch.tied", str(os.getpid()), *command)
        with naming(files.stderr):
            for path in (files.stdout, files.stderr, files.ready):
                path.parent.mkdir(parents=True, exist_ok=True)
            files.ready.unlink(missing_ok=True)
            with files.stdout.open("ab") as stdout, files.stderr.open("ab") as stderr:
                self._first_byte = stderr.tell()
                self._process = subprocess.Popen(
                    tied,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    env={**os.environ, **(variables or {})},
                )
        self.started_s = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id of the command, and id of its group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """How it ended; None while it runs. A signal is a negative number."""
        return self._process.poll()

    def ready(self) -> Mapping[str, object] | None:
        """What it wrote into its ready file; None until then."""
        try:
            facts = json.loads(self.files.ready.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return facts if facts.get("pid") == self.pid else None

    def last_words(self) -> str:
        """What it said went wrong since it was started: its error with a name, else the last line on stderr."""
        lines = [line.strip() for line in _tail(self.files.stderr, self._first_byte).splitlines() if line.strip()]
        named = [line.removeprefix(_SPEAKER) for line in lines if line.startswith(_SPEAKER)]
        return (named or lines or ["it said nothing"])[-1]

    def note(self, event: str) -> None:
        """Add a line of the launcher's to its log; DiskError if there is no room for one."""
        with naming(self.files.stderr), self.files.stderr.open("a", encoding="utf-8") as log:
            log.write(f"launcher: {event}\n")

    def ask_to_end(self) -> None:
        """Send SIGTERM to the command."""
        if self.exit_code() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole group and wait for the command."""
        # The group outlives its leader as long as a worker runs; a group without members is what we want.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def stop_all(children: Sequence[Child], *, grace_s: float, pause: Callable[[float], object] = time.sleep) -> None:
    """End children together: SIGTERM, then after `grace_s` SIGKILL to what is left of their groups."""
    for child in children:
        child.ask_to_end()
    deadline_s = time.monotonic() + grace_s
    while any(child.exit_code() is None for child in children) and time.monotonic() < deadline_s:
        pause(0.05)
    for child in children:
        child.kill()


def _tail(path: Path, first_byte: int) -> str:
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(first_byte, size_bytes - _TAIL_BYTES))
        return file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
