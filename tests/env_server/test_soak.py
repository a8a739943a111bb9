"""The soak of the env server, short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_seconds_of_full_load_and_killed_workers_lose_nothing() -> None:
    command = [sys.executable, "benchmarks/soak_env_server.py", "--seconds", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| every request has one final reply | yes |" in done.stdout
