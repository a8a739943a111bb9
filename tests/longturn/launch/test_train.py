"""`longturn train` as a user meets it: real daemons on the echo environment."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longturn.records import Task
from longturn.task_file import TaskEntry, write_tasks
from tests.longturn.launch.prepared import ECHO, begun_run
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


def train(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "longturn", "train", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names the folder, this one's children included."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder).encode() in words:
                found.append(int(entry.name))
    return found


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that would record demonstrations for ever, once its env server serves them."""
    phases = ("check settings", "task files", "games")
    layout = begun_run(tmp_path, phases, "warmstart.num_episodes=10000000")
    task = Task(environment="echo", task_id="echo/train/000000")
    write_tasks(layout.tasks("warmstart"), [TaskEntry(task=task)])
    ready = layout.files("env_server").ready
    with train(tmp_path, "--resume", str(layout.folder)) as process:
        wait_until(lambda: ready.exists() or process.poll() is not None, limit_s=100.0)
        yield process
        process.kill()


def test_ctrl_c_leaves_no_process_and_says_how_to_go_on(long_run: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until(lambda: len(processes_of(tmp_path)) >= 2)
    long_run.send_signal(signal.SIGINT)
    code, stdout, stderr = ended(long_run)
    assert code == 130, stderr
    assert "go on with: longturn train --resume runs/echo" in stdout
    assert processes_of(tmp_path) == []


def test_a_killed_launcher_takes_its_daemons_with_it(long_run: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until(lambda: len(processes_of(tmp_path)) >= 2)
    long_run.kill()
    wait_until(lambda: processes_of(tmp_path) == [])


def test_an_unknown_table_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    code, _, stderr = ended(train(tmp_path, "--config", str(ECHO), "--set", "lerner.seed=1"))
    assert code == 2
    assert "unknown table [lerner], did you mean [learner]?" in stderr
    assert not (tmp_path / "runs").exists()


def test_a_wrong_setting_of_a_daemon_is_refused_before_anything_starts(tmp_path: Path) -> None:
    code, _, stderr = ended(train(tmp_path, "--config", str(ECHO), "--set", "learner.batch.num_batch=1"))
    assert code == 2
    assert "learner.batch.num_batch: unknown setting, did you mean num_batches?" in stderr
    assert not (tmp_path / "runs" / "echo" / "ready" / "env_server.json").exists()
    assert "--resume" not in stderr
    assert not (tmp_path / "runs" / "echo" / "config.toml").exists()


def test_a_setting_that_the_launcher_fills_in_is_refused_with_what_to_set_instead(tmp_path: Path) -> None:
    code, _, stderr = ended(train(tmp_path, "--config", str(ECHO), "--set", "learner.seed=3"))
    assert code == 2
    assert stderr == "longturn: learner.seed is filled in by the launcher: set run.seed, or give --seed\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--config", str(ECHO), "--set", "run.folder=file"), "file/echo: Not a directory"),
        (("--config", "."), "config file . cannot be read: Is a directory; give another with --config"),
    ],
)
def test_what_the_system_refuses_is_one_line(tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    (tmp_path / "file").touch()
    code, _, stderr = ended(train(tmp_path, *arguments))
    assert code == 2
    assert stderr.startswith("longturn: ")
    assert line in stderr
    assert stderr.count("\n") == 1


def test_a_panel_must_not_come_from_the_training_split(tmp_path: Path) -> None:
    code, _, stderr = ended(train(tmp_path, "--config", str(ECHO), "--set", "tasks.test.split=train"))
    assert code == 2
    assert "test.split must differ" in stderr


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "runs" / "echo").mkdir(parents=True)
    (tmp_path / "runs" / "echo" / "config.toml").touch()
    code, _, stderr = ended(train(tmp_path, "--config", str(ECHO)))
    assert code == 2
    assert "longturn train --resume runs/echo" in stderr


def test_a_resumed_run_keeps_its_settings(tmp_path: Path) -> None:
    code, _, stderr = ended(train(tmp_path, "--resume", "runs/echo", "--set", "learner.seed=1"))
    assert code == 2
    assert "give --resume alone" in stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_daemons_are_all_killed_once_ends_well_and_trained_every_group_once(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "echo"
    with train(tmp_path, "--config", str(ECHO), "--set", "learner.batch.num_batches=40") as process:
        for number, name in enumerate(("learner", "actors", "engine", "env_server")):
            has_moved_on = functools.partial(has_finished_or_trained, process, folder, 3 * number)
            wait_until(has_moved_on, limit_s=300.0)
            os.kill(json.loads((folder / "ready" / f"{name}.json").read_text())["pid"], signal.SIGKILL)
        code, stdout, stderr = ended(process)
    assert code == 0, stdout + stderr
    assert "learner ended by signal 9; restart 1 of 5" in stdout
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["batches_trained"] == 40
    assert set(summary["restarts"]) == {"learner", "actors", "engine", "env_server"}
    assert summary["held_out_greedy"]["paired"]["episodes"] == 4
    assert_history_is_whole(folder)
    report = (folder / "report.html").read_text()
    for title in ("Entropy and the EPO corridor", "Staleness of the data", "Who waited for whom"):
        assert title in report
    assert processes_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_was_killed_as_a_whole_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "echo"
    with train(tmp_path, "--config", str(ECHO), "--set", "learner.batch.num_batches=20") as process:
        wait_until(functools.partial(has_finished_or_trained, process, folder, 3), limit_s=300.0)
        process.kill()
    wait_until(lambda: processes_of(tmp_path) == [])
    with train(tmp_path, "--resume", str(folder)) as process:
        code, stdout, stderr = ended(process)
    assert code == 0, stdout + stderr
    assert "imitation: done before" in stdout
    assert json.loads((folder / "summary.json").read_text())["batches_trained"] == 20
    assert_history_is_whole(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_learner_that_gets_no_groups_ends_the_run_once_and_says_what_mends_it(tmp_path: Path) -> None:
    settings = (
        "learner.play.max_group_s=0.001",
        "learner.batch.max_slot_failures=1",
        "learner.stop.max_skipped_in_a_row=1",
    )
    phases = ("check settings", "games", "gate", "evaluation before")
    layout = begun_run(tmp_path, phases, *settings)
    code, stdout, stderr = ended(train(tmp_path, "--resume", str(layout.folder)))
    assert code == 2
    assert "longturn: learner failed: the run ended with NO_GROUPS: learner.stop.max_skipped_in_a_row = 1" in stderr
    assert "(this run's settings: runs/echo/config.toml), go on with: longturn train --resume runs/echo" in stderr
    assert "restart" not in stdout
    assert "Traceback" not in stderr
    assert processes_of(tmp_path) == []


def assert_history_is_whole(folder: Path) -> None:
    """The ledger proves the history of the last weights, and no outage cost a slot."""
    audit = [sys.executable, "-m", "learner.ledger.audit", str(folder)]
    result = subprocess.run(audit, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["num_slots_closed"] == 0


def has_finished_or_trained(process: subprocess.Popen[str], folder: Path, num_batches: int) -> bool:
    """Whether the run ended, or its learner has finished more batches than that."""
    path = folder / "metrics" / "learner.jsonl"
    return process.poll() is not None or (path.exists() and len(path.read_text().splitlines()) > num_batches)
