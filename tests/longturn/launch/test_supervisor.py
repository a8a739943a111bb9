"""Daemons that die are restarted, visibly and not for ever."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from longturn.launch.supervisor import (
    DaemonFailedError,
    DaemonSpec,
    Facts,
    InterruptedRunError,
    OneShot,
    Supervisor,
)
from tests.longturn.launch.test_child import READY, files_in, is_alive, wait_until


def sleep_on(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def make_spec(folder: Path, source: str = READY, *, max_restarts: int = 3, ends_by_itself: bool = False) -> DaemonSpec:
    files = files_in(folder, "daemon")

    def command(facts: Facts | None, num_starts: int) -> Sequence[str]:
        return [sys.executable, "-c", source, str(files.ready), str(num_starts), str(facts and facts["pid"])]

    return DaemonSpec(
        name="daemon", command=command, files=files, max_restarts=max_restarts, ends_by_itself=ends_by_itself
    )


def one_shot(folder: Path, name: str, source: str) -> OneShot:
    return OneShot(name=name, command=[sys.executable, "-c", source], files=files_in(folder, name))


def make_supervisor(said: list[str]) -> Supervisor:
    return Supervisor(wait=sleep_on, say=said.append, grace_s=5.0, restart_delay_s=0.0)


def test_a_killed_daemon_is_started_again_and_told_so(tmp_path: Path) -> None:
    said: list[str] = []
    with make_supervisor(said) as supervisor:
        first = supervisor.start_and_wait(make_spec(tmp_path))
        os.kill(int(str(first["pid"])), signal.SIGKILL)
        while not said:
            supervisor.tick(0.01)
        second = supervisor.await_ready("daemon")
        assert second["pid"] != first["pid"]
        assert said == ["daemon ended by signal 9; restart 1 of 3"]
        assert supervisor.num_restarts == {"daemon": 1}
        command = Path(f"/proc/{second['pid']}/cmdline").read_bytes().split(b"\0")
        assert command[4:6] == [b"1", str(first["pid"]).encode()]
    wait_until(lambda: not is_alive(int(str(second["pid"]))))


def test_a_daemon_that_keeps_dying_ends_the_run(tmp_path: Path) -> None:
    said: list[str] = []
    with make_supervisor(said) as supervisor:
        facts = supervisor.start_and_wait(make_spec(tmp_path, max_restarts=0))
        os.kill(int(str(facts["pid"])), signal.SIGKILL)
        with pytest.raises(DaemonFailedError, match="daemon ended by signal 9"):
            wait_until(lambda: supervisor.tick(0.01))
    assert said == []


def test_a_daemon_that_never_served_is_not_restarted_and_its_last_words_are_shown(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, "import sys; sys.exit('longturn: port 7 is taken; change env_server.port')")
    with make_supervisor([]) as supervisor, pytest.raises(DaemonFailedError, match=r"change env_server\.port"):
        supervisor.start_and_wait(spec)


def test_a_daemon_whose_work_is_done_is_left_alone(tmp_path: Path) -> None:
    said: list[str] = []
    with make_supervisor(said) as supervisor:
        supervisor.start(make_spec(tmp_path, "pass", ends_by_itself=True))
        while supervisor.is_running("daemon"):
            supervisor.tick(0.01)
        supervisor.tick(0.01)
    assert said == []


def test_a_failed_one_shot_command_says_why(tmp_path: Path) -> None:
    with make_supervisor([]) as supervisor, pytest.raises(DaemonFailedError, match="tasks failed: no such split"):
        supervisor.run(one_shot(tmp_path, "tasks", "import sys; sys.exit('no such split')"))


def test_asking_to_stop_ends_every_process(tmp_path: Path) -> None:
    asked: list[bool] = []

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return bool(asked)

    with Supervisor(wait=wait, say=lambda line: None, grace_s=5.0) as supervisor:
        pid = int(str(supervisor.start_and_wait(make_spec(tmp_path))["pid"]))
        asked.append(True)
        with pytest.raises(InterruptedRunError):
            supervisor.run(one_shot(tmp_path, "forever", "import time; time.sleep(60)"))
    wait_until(lambda: not is_alive(pid))
