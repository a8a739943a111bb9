"""The guard: a tiny process that outlives a killed server for a moment, to end what the server left behind.

A worker dies with its server by itself, but what a worker started (a Java runtime) would not. The guard reads the ids
of the live process groups from a pipe; at the pipe's end it kills those that are left and removes their folders.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

logger = logging.getLogger(__name__)

_PROGRAM = """
import os, shutil, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    if line.startswith("+"):
        groups.add(int(line[1:]))
    elif line.startswith("-"):
        groups.discard(int(line[1:]))
    else:
        shutil.rmtree(line[1:].rstrip("\\n"), ignore_errors=True)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        continue
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class Guard:
    """The server's end of the guard's pipe. `root` is removed at the end, whatever becomes of the server."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(root)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Kill this process group if the server dies."""
        self._tell(f"+{group}")

    def forget(self, group: int, folder: Path) -> None:
        """The group is gone; remove its folder."""
        self._tell(f"-{group}")
        self._tell(f"/{folder}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            logger.warning("the guard is gone: children of killed workers may outlive a killed server")

    def close(self) -> None:
        """Let the guard do its last work, and wait for it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
