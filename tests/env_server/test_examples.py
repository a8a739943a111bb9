"""The examples do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.env_server.test_daemon import daemon

ROOT = Path(__file__).parents[2]


def test_the_textworld_example_wins_a_real_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textworld")
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path / "cache"))
    with daemon(tmp_path, "--env", "textworld") as (_, address):
        command = [sys.executable, str(ROOT / "examples" / "play_textworld.py"), address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=os.environ)
        assert done.stdout.splitlines()[-1].startswith("won after")
