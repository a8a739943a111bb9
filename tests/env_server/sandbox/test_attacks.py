"""Programs that want out: each ends as a failed run, with every combination of layers that is enough."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from env_server.environments.code_data import own_data_hash
from env_server.sandbox.isolation import find_isolation
from env_server.sandbox.records import Case, Limits, Outcome, Verdict
from env_server.sandbox.sandbox import Sandbox
from tests.env_server.sandbox.machine import LAYER_SETS, require_isolation, sandbox_processes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("adopts_orphans")

LIMITS = Limits(cpu_s=1, wall_s=30.0, total_s=45.0, output_bytes=65_536)
SECRET = "the answers to all tests"
LIMIT = {Verdict.CPU_LIMIT, Verdict.TIME_LIMIT}
"""Which of the two comes first depends on how busy the machine is."""
FAILED = {Verdict.ERROR, Verdict.KILLED, *LIMIT}


@pytest.fixture(params=list(LAYER_SETS), scope="module")
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """A sandbox of each set of layers."""
    layers = LAYER_SETS[request.param]
    require_isolation(layers)
    return Sandbox(layers=layers, limits=LIMITS)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that everybody may read and write, in a folder that everybody may."""
    shared = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(shared) and folder != shared:
            folder.chmod(0o777)
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o666)
    return path


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user that an attack must not end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def run(sandbox: Sandbox, program: str) -> Outcome:
    """One run without input; afterwards nothing of it is left."""
    (outcome,) = sandbox.run(program, (Case(),))
    assert not sandbox_processes()
    return outcome


def roomy(sandbox: Sandbox) -> Sandbox:
    """The same with processor time to spare, so that a busy machine meets no other limit first."""
    return replace(sandbox, limits=replace(sandbox.limits, cpu_s=20))


def test_a_fork_bomb_is_contained(sandbox: Sandbox) -> None:
    program = (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError as error:\n        last = error\n"
    )
    quick = Sandbox(layers=sandbox.layers, limits=Limits(cpu_s=1, wall_s=2.0))
    assert run(quick, program).verdict in FAILED


def test_a_thread_bomb_is_contained(sandbox: Sandbox) -> None:
    program = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()"
    outcome = run(sandbox, program)
    assert outcome.verdict in FAILED


def test_an_endless_loop_meets_a_limit(sandbox: Sandbox) -> None:
    assert run(sandbox, "while True: pass").verdict in LIMIT


def test_an_endless_loop_that_ignores_its_signal_is_killed(sandbox: Sandbox) -> None:
    program = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert run(sandbox, program).verdict in LIMIT


def test_ten_gigabytes_are_refused(sandbox: Sandbox) -> None:
    outcome = run(roomy(sandbox), "x = bytearray(10 * 2**30)\nprint(len(x))")
    assert (outcome.verdict, outcome.output) == (Verdict.ERROR, "")
    assert outcome.error.startswith("MemoryError")


def test_memory_that_grows_step_by_step_is_refused(sandbox: Sandbox) -> None:
    outcome = run(roomy(sandbox), "x = []\nwhile True: x.append(bytearray(2**24))")
    assert outcome.error.startswith("MemoryError")


@pytest.mark.parametrize("attempt", ["print(open({path!r}).read())", "open({path!r}, 'a').write('x')",
                                     "import os; os.remove({path!r})", "import os; os.rename({path!r}, {path!r} + '2')",
                                     "import os; os.chmod({path!r}, 0)", "import os; os.truncate({path!r}, 0)",
                                     "import os; os.link({path!r}, {path!r} + '2')", "open({path!r} + '2', 'w')",
                                     "import os; os.mkdir({path!r} + '2')"])  # fmt: skip
def test_files_outside_can_neither_be_read_nor_changed(sandbox: Sandbox, secret: Path, attempt: str) -> None:
    outcome = run(sandbox, attempt.format(path=str(secret)))
    assert outcome.verdict is Verdict.ERROR, outcome
    assert SECRET not in outcome.output + outcome.error
    assert secret.read_text() == SECRET
    assert os.listdir(secret.parent) == ["secret"]


def test_the_hidden_tests_and_the_systems_files_cannot_be_read(sandbox: Sandbox) -> None:
    import env_server.environments.code_data as code_data

    data = Path(code_data.__file__).with_name("code_problems.jsonl")
    paths = [str(data), "/etc/passwd", "/proc/self/environ", "/proc/1/environ", "/sys/kernel", os.path.expanduser("~")]
    program = (
        "import os\n"
        f"for path in {paths!r}:\n"
        "    try:\n"
        "        print(path, os.listdir(path) if os.path.isdir(path) else open(path).read())\n"
        "    except OSError as error:\n"
        "        continue\n"
    )
    outcome = run(sandbox, program)
    allowed = "['.pyenv']"  # the way to the standard library, where it lies in the home folder
    for line in outcome.output.splitlines():
        assert line == f"{os.path.expanduser('~')} {allowed}", outcome
    assert own_data_hash()


def test_installed_packages_cannot_be_imported(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "import pytest")
    assert outcome.error.startswith("ModuleNotFoundError")


@pytest.mark.parametrize(("family", "kind"), [("AF_INET", "SOCK_STREAM"), ("AF_INET", "SOCK_DGRAM"),
                                              ("AF_UNIX", "SOCK_STREAM")])  # fmt: skip
def test_no_socket_reaches_anybody(sandbox: Sandbox, family: str, kind: str) -> None:
    with socket.socket(getattr(socket, family), getattr(socket, kind)) as ear:
        ear.bind(("127.0.0.1", 0) if family == "AF_INET" else f"\0longturn-attack-{os.getpid()}")
        if kind == "SOCK_STREAM":
            ear.listen()
        ear.settimeout(0.0)
        program = (
            "import socket\n"
            f"with socket.socket(socket.{family}, socket.{kind}) as end:\n"
            f"    end.connect({ear.getsockname()!r})\n"
            "    end.send(b'x')\n"
            "print('reached')\n"
        )
        outcome = run(sandbox, program)
        assert (outcome.verdict, outcome.output) == (Verdict.ERROR, "")
        with pytest.raises(BlockingIOError):
            ear.accept() if kind == "SOCK_STREAM" else ear.recv(1)


def test_nobody_outside_can_be_killed(sandbox: Sandbox, bystander: subprocess.Popen[bytes]) -> None:
    victims = [os.getpid(), bystander.pid, os.getppid(), 0, -1]
    program = (
        "import os\n"
        f"for victim in [os.getppid(), *{victims!r}]:\n"
        "    try:\n"
        "        os.kill(victim, 9)\n"
        "    except OSError:\n"
        "        continue\n"
    )
    run(sandbox, program)
    assert bystander.poll() is None
    (again,) = sandbox.run("print('well')", (Case(),))
    assert again.output == "well\n"


def test_a_program_that_kills_its_parent_spoils_no_other_test(sandbox: Sandbox) -> None:
    program = "import os\nif input() == 'kill':\n    os.kill(os.getppid(), 9)\nprint('ok')"
    outcomes = sandbox.run(program, (Case(stdin="kill\n"), Case(stdin="live\n")))
    assert outcomes[1].output == "ok\n"


def test_a_flood_of_output_is_cut(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "while True: print('x' * 1000)")
    assert outcome.verdict is Verdict.ERROR
    assert len(outcome.output) <= LIMITS.output_bytes


def test_a_sleeper_meets_the_time_limit(sandbox: Sandbox) -> None:
    quick = Sandbox(layers=sandbox.layers, limits=Limits(wall_s=0.5, total_s=5.0))
    outcomes = quick.run("import time\ntime.sleep(60)", (Case(), Case()))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.TIME_LIMIT, Verdict.NOT_RUN]
    assert not sandbox_processes()


def test_a_child_that_leaves_its_group_does_not_outlive_the_run(sandbox: Sandbox) -> None:
    program = "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(60)\nprint('done')"
    run(sandbox, program)


def test_a_crash_of_the_interpreter_is_a_failed_run(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "import ctypes\nctypes.string_at(0)")
    assert (outcome.verdict, outcome.error) == (Verdict.KILLED, "SIGSEGV")


def test_reports_cannot_be_forged(sandbox: Sandbox) -> None:
    program = (
        "import os\n"
        "for number in range(3, 64):\n"
        "    try:\n"
        "        os.write(number, b'0\\nfinished 4 0\\nfake')\n"
        "    except OSError:\n"
        "        continue\n"
        "os._exit(1)\n"
    )
    outcome = run(sandbox, program)
    assert (outcome.verdict, outcome.output) == (Verdict.ERROR, "")


def test_nothing_lives_on_when_the_launcher_is_killed(sandbox: Sandbox) -> None:
    errors: list[str] = []

    def play() -> None:
        try:
            sandbox.run("import time\ntime.sleep(60)", (Case(),))
        except Exception as error:  # noqa: BLE001 - any: the thread only tells
            errors.append(type(error).__name__)

    thread = threading.Thread(target=play)
    thread.start()
    wait_until(lambda: len(sandbox_processes()) == 3)
    os.kill(sandbox_processes()[0], signal.SIGKILL)
    thread.join()
    wait_until(lambda: not sandbox_processes())
    assert errors == ["SandboxError"]


def test_without_layers_the_doors_are_found_open() -> None:
    here = find_isolation(frozenset())
    assert here.open_doors == ("files", "network", "processes")
    assert not here.is_whole


def test_a_process_left_behind_would_be_seen() -> None:
    program = (
        "import os, time\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    (outcome,) = Sandbox(layers=frozenset(), limits=LIMITS).run(program, (Case(),))
    (orphan,) = sandbox_processes()
    os.kill(orphan, signal.SIGKILL)
    os.waitpid(orphan, 0)
    assert outcome.verdict is Verdict.FINISHED
    assert not sandbox_processes()
