"""Daemons that die are restarted, visibly and not for ever."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from longturn.disk import DiskError
from longturn.launch.supervisor import (
    DaemonFailedError,
    DaemonSpec,
    Facts,
    InterruptedRunError,
    OneShot,
    Supervisor,
)
from tests.longturn.launch.test_child import READY, files_in
from tests.support.full_disk import largest_file
from tests.support.processes import is_alive
from tests.support.waiting import wait_until


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


ENDS = (
    "import sys, time; from pathlib import Path; from longturn.cli import fail; from longturn.ready import write_ready;"
    "write_ready(Path(sys.argv[1]), {'address': 'x'});"
)
"""Serves, then ends in a way that a test adds."""


def one_shot(folder: Path, name: str, source: str, *, settings: str = "", result: Path | None = None) -> OneShot:
    command = [sys.executable, "-c", source]
    return OneShot(name=name, command=command, files=files_in(folder, name), settings=settings, result=result)


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


def test_a_daemon_that_ends_with_a_named_error_ends_the_run_at_once_with_its_own_line(tmp_path: Path) -> None:
    said: list[str] = []
    line = "the run ended with NO_GROUPS: raise learner.stop.max_skipped_in_a_row"
    with make_supervisor(said) as supervisor:
        supervisor.start_and_wait(make_spec(tmp_path, f"{ENDS} time.sleep(0.5); fail({line!r})"))
        with pytest.raises(DaemonFailedError) as caught:
            wait_until(lambda: supervisor.tick(0.01))
        assert supervisor.num_restarts == {}
    assert str(caught.value) == f"daemon failed: {line} (log: {tmp_path / 'daemon.log'})"
    assert said == []


def test_a_daemon_that_crashes_with_another_exit_code_is_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    source = f"{ENDS} time.sleep(0.5)\nif sys.argv[2] == '0': raise ValueError('a bug')\ntime.sleep(60)"
    with make_supervisor(said) as supervisor:
        supervisor.start_and_wait(make_spec(tmp_path, source))
        while not said:
            supervisor.tick(0.01)
        supervisor.await_ready("daemon")
    assert said == ["daemon ended by exit code 1: ValueError: a bug; restart 1 of 3"]
    assert f"launcher: {said[0]}" in (tmp_path / "daemon.log").read_text()


def test_restarts_are_counted_over_all_daemons_of_a_name(tmp_path: Path) -> None:
    said: list[str] = []
    with make_supervisor(said) as supervisor:
        for number in (1, 2):
            pid = int(str(supervisor.start_and_wait(make_spec(tmp_path))["pid"]))
            os.kill(pid, signal.SIGKILL)
            while len(said) < number:
                supervisor.tick(0.01)
            supervisor.stop("daemon")
        assert supervisor.num_restarts == {"daemon": 2}


def test_a_crash_on_a_full_disk_is_not_repeated_and_names_the_disk(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "daemon.log").write_text("full\n" * 200)
    with make_supervisor(said) as supervisor, largest_file(1000):
        pid = int(str(supervisor.start_and_wait(make_spec(tmp_path))["pid"]))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DiskError, match=r"daemon\.log: File too large; raise the limit"):
            wait_until(lambda: supervisor.tick(0.01))
    assert (said, supervisor.num_restarts) == ([], {})


def test_a_daemon_that_is_done_before_it_served_is_no_endless_wait(tmp_path: Path) -> None:
    with make_supervisor([]) as supervisor, pytest.raises(DaemonFailedError, match="ended before it served"):
        supervisor.start_and_wait(make_spec(tmp_path, "pass", ends_by_itself=True))


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


def test_a_failed_one_shot_command_says_why_and_where_its_settings_lie(tmp_path: Path) -> None:
    shot = one_shot(
        tmp_path, "tasks", "from longturn.cli import fail; fail('no such split')", settings="tasks.train.mix"
    )
    with make_supervisor([]) as supervisor, pytest.raises(DaemonFailedError) as caught:
        supervisor.run(shot)
    log = tmp_path / "tasks.log"
    assert str(caught.value) == f"tasks failed: no such split (settings: tasks.train.mix) (log: {log})"


def test_a_one_shot_command_that_left_its_result_did_its_work(tmp_path: Path) -> None:
    result = tmp_path / "result"
    source = f"import sys; from pathlib import Path; Path({str(result)!r}).touch(); sys.exit(1)"
    with make_supervisor([]) as supervisor:
        supervisor.run(one_shot(tmp_path, "eval", source, result=result))
        with pytest.raises(DaemonFailedError, match="eval ended by exit code 1"):
            supervisor.run(one_shot(tmp_path, "eval", source, result=tmp_path / "absent"))


def test_the_first_command_to_fail_ends_the_others_and_is_named(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begin = f"import os, time; from pathlib import Path; begun = Path({str(begun)!r})\n"
    write_pid = "begun.with_suffix('.new').write_text(str(os.getpid())); begun.with_suffix('.new').rename(begun)\n"
    forever = one_shot(tmp_path, "games", f"{begin}{write_pid}while True: time.sleep(60)")
    fail = "from longturn.cli import fail\nwhile not begun.exists(): time.sleep(0.01)\nfail('no examples')"
    fails = one_shot(tmp_path, "imitate", f"{begin}{fail}")
    with make_supervisor([]) as supervisor, pytest.raises(DaemonFailedError, match="imitate failed: no examples"):
        supervisor.run_all([forever, fails])
    assert not is_alive(int(begun.read_text()))


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
