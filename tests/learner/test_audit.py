"""The audit finds what it promises to find."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from learner.ledger.audit import audit, newest_checkpoint
from tests.support.learner_run import small_config, train_with_pool

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, model_dir: Path, task_path: Path) -> Path:
    config = small_config(tmp_path_factory.mktemp("audit") / "run", model_dir, task_path, batch={"num_batches": 2})
    train_with_pool(config)
    return config.run_dir


def test_the_command_prints_the_proof(finished_run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "learner.ledger.audit", str(finished_run)], cwd=ROOT, capture_output=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["is_proven"]
    assert report["num_batches"] == 2


def drop_verdict(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM verdicts WHERE rowid = (SELECT MIN(rowid) FROM verdicts)")


def unfilter(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE verdicts SET verdict = CASE verdict WHEN 'kept' THEN 'outranked' ELSE 'kept' END")


def lose_trajectory(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM trajectories WHERE rowid = (SELECT MIN(rowid) FROM trajectories)")


def change_trajectory(connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE trajectories SET trajectory = (SELECT trajectory FROM trajectories WHERE rowid = 2) WHERE rowid = 1"
    )


def train_twice(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE batches SET training_step = 1")


def unconsume(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE batches SET outcome = NULL WHERE batch = 1")


def reuse_version(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE versions SET policy_version = 9 WHERE policy_version = 1")


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (drop_verdict, "has no verdict"),
        (unfilter, "digest"),
        (lose_trajectory, "holds members"),
        (change_trajectory, "holds members"),
        (train_twice, "training step 1, 2 was expected"),
        (unconsume, "was not consumed"),
        (reuse_version, "versions were reused"),
    ],
)
def test_a_tampered_ledger_is_found_out(
    tmp_path: Path, finished_run: Path, tamper: Callable[[sqlite3.Connection], None], problem: str
) -> None:
    path = tmp_path / "ledger.db"
    with sqlite3.connect(finished_run / "ledger.db") as source, sqlite3.connect(path) as copy:
        source.backup(copy)
        tamper(copy)
    source.close()
    copy.commit()
    copy.close()
    report = audit(path, newest_checkpoint(finished_run))
    assert not report.is_proven
    assert any(problem in text for text in report.problems), report.problems
