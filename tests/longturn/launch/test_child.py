"""Children end when they should, with everything they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from longturn.launch.child import Child, ChildFiles, stop_all
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

SLEEPER = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
PARENT_OF_ONE = (
    f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]).pid, flush=True); "
    + ("import time; time.sleep(60)")
)
READY = (
    "import os, sys, time; from pathlib import Path; from longturn.ready import write_ready;"
    "write_ready(Path(sys.argv[1]), {'address': 'x'}); time.sleep(60)"
)


def files_in(folder: Path, name: str = "child") -> ChildFiles:
    return ChildFiles(
        stdout=folder / f"{name}.out", stderr=folder / f"{name}.log", ready=folder / "ready" / f"{name}.json"
    )


def printed(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_ready_file_of_another_process_does_not_count(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    child = Child("child", [sys.executable, "-c", READY, str(files.ready)], files)
    wait_until(lambda: child.ready() is not None)
    facts = child.ready()
    assert facts is not None
    assert facts["address"] == "x"
    files.ready.write_text('{"pid": 1}')
    assert child.ready() is None
    child.kill()


def test_stopping_ends_the_command_and_what_it_started(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    child = Child("child", [sys.executable, "-c", PARENT_OF_ONE], files)
    wait_until(lambda: printed(files.stdout).endswith("\n"))
    grandchild = int(printed(files.stdout))
    stop_all([child], grace_s=5.0)
    assert child.exit_code() == -signal.SIGTERM
    wait_until(lambda: not is_alive(grandchild))


def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    child = Child("child", [sys.executable, "-c", STUBBORN], files)
    wait_until(lambda: printed(files.stdout).endswith("\n"))
    stop_all([child], grace_s=0.2)
    assert child.exit_code() == -signal.SIGKILL


def test_a_child_dies_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher_source = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from longturn.launch.child import Child, ChildFiles\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "files = ChildFiles(stdout=folder / 'out', stderr=folder / 'err', ready=folder / 'ready.json')\n"
        f"child = Child('child', [sys.executable, '-c', {STUBBORN!r}], files)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", launcher_source], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    with launcher.stdout:
        child_pid = int(launcher.stdout.readline())
    wait_until(lambda: printed(tmp_path / "out") == "1\n")
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    wait_until(lambda: not is_alive(child_pid))


def test_the_last_words_are_the_last_line_on_stderr(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    child = Child("child", [sys.executable, "-c", "import sys; sys.exit('first\\nport 7 is taken')"], files)
    wait_until(lambda: child.exit_code() is not None)
    assert child.exit_code() == 1
    assert child.last_words() == "port 7 is taken"
    child.kill()


def test_words_of_an_earlier_start_are_not_its_own(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.stderr.write_text("longturn: the disk is full\n")
    child = Child("child", [sys.executable, "-c", "import sys; sys.exit(2)"], files)
    wait_until(lambda: child.exit_code() is not None)
    assert child.last_words() == "it said nothing"
    child.kill()


def test_an_error_with_a_name_counts_more_than_what_follows_it(tmp_path: Path) -> None:
    source = "import sys; print('longturn: no engine', file=sys.stderr); sys.exit('a thread ended late')"
    child = Child("child", [sys.executable, "-c", source], files_in(tmp_path))
    wait_until(lambda: child.exit_code() is not None)
    assert child.last_words() == "no engine"
    child.kill()
