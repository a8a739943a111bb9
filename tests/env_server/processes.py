"""Servers as processes of their own: `python -m env_server`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

WAIT_S = 60.0


@contextmanager
def daemon(tmp_path: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address."""
    ready = tmp_path / "ready.json"
    ready.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "env_server",
        "--port",
        "0",
        "--workers",
        "2",
        "--ready-file",
        str(ready),
        *options,
    ]
    env = os.environ | {"TMPDIR": str(tmp_path)} | variables
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield process, json.loads(ready.read_text())["address"]
    finally:
        process.kill()
        process.communicate()
