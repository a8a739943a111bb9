"""kill -9 of every daemon during a run: it ends normally, and the ledger proves that nothing was lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.longturn.launch.test_child import wait_until
from tests.longturn.launch.test_train import ECHO, ended, processes_of, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_NUM_BATCHES = 12


def _num_rows(folder: Path) -> int:
    rows = folder / "metrics" / "learner.jsonl"
    return len(rows.read_text().splitlines()) if rows.exists() else 0


def _wait_for_rows(process: subprocess.Popen[str], folder: Path, num_rows: int) -> None:
    wait_until(lambda: process.poll() is not None or _num_rows(folder) >= num_rows, budget_s=500.0)
    assert process.poll() is None, "the run ended before it could be killed"


def _pid(folder: Path, daemon: str) -> int:
    return json.loads((folder / "ready" / f"{daemon}.json").read_text())["pid"]


def _audit(folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "learner.ledger.audit", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_run_survives_kill_9_of_each_daemon(tmp_path: Path) -> None:
    process = train(tmp_path, "--config", str(ECHO), "--set", f"learner.batch.num_batches={_NUM_BATCHES}")
    folder = tmp_path / "runs" / "echo"
    for index, daemon in enumerate(("actors", "env_server", "engine", "learner")):
        _wait_for_rows(process, folder, 1 + 2 * index)
        os.kill(_pid(folder, daemon), signal.SIGKILL)
    code, stdout, stderr = ended(process)
    assert code == 0, stdout + stderr
    for daemon in ("actors", "env_server", "engine", "learner"):
        assert f"{daemon} ended by signal 9" in stdout
    report = _audit(folder)
    assert report["problems"] == []
    assert report["num_batches"] == _NUM_BATCHES
    assert report["num_slots_closed"] == 0
    assert processes_of(tmp_path) == []


def test_a_run_whose_processes_were_all_killed_resumes(tmp_path: Path) -> None:
    process = train(tmp_path, "--config", str(ECHO), "--set", f"learner.batch.num_batches={_NUM_BATCHES}")
    folder = tmp_path / "runs" / "echo"
    _wait_for_rows(process, folder, 4)
    process.kill()
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)
    ended(process)
    wait_until(lambda: processes_of(tmp_path) == [])
    code, stdout, stderr = ended(train(tmp_path, "--resume", "runs/echo"))
    assert code == 0, stdout + stderr
    report = _audit(folder)
    assert report["problems"] == []
    assert report["num_batches"] == _NUM_BATCHES
    assert report["num_slots_closed"] == 0
