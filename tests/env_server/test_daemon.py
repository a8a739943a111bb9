"""The server as a process: `python -m env_server`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest

from longturn.v1 import environment_pb2, environment_pb2_grpc
from tests.env_server.loopback import ODD, Player, error_info, start_request
from tests.env_server.processes import WAIT_S, daemon
from tests.support.processes import is_alive
from tests.support.waiting import wait_until


def _family(pid: int) -> list[int]:
    """Ids of the children of a process and of theirs."""
    children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in _family(child)]


def test_a_killed_server_leaves_no_process_and_no_folder_behind(tmp_path: Path) -> None:
    with daemon(tmp_path, "--env", f"{ODD}:ParentEnvironment") as (process, address):
        with grpc.insecure_channel(address) as channel:
            stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
            started = stub.StartEpisode(start_request("parent"))
        family = _family(process.pid)
        assert int(started.result.extras["child_pid"]) in family
        assert len(family) >= 5
        process.kill()
        process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in family))
        wait_until(lambda: not list(tmp_path.glob("longturn-serve-*")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_server(tmp_path: Path, number: int) -> None:
    async def main(process: subprocess.Popen[str], address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
            request = start_request(knobs={"step_sleep_ms": 1500.0})
            started = await stub.StartEpisode(request, wait_for_ready=True)
            player = Player(stub, started.episode_id, started.episode_token, started.result)
            steps = [asyncio.create_task(player.step(action)) for action in ("amber", "birch")]
            refused, (running,) = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            # Whichever came second is refused at once, for the other one is in flight.
            assert [error_info(step.exception()).reason for step in refused] == ["ACTION_MISMATCH"]
            process.send_signal(number)
            reasons: list[str] = []
            while not running.done():
                reasons.append(await _refusal_of_a_start(stub))
            assert (await running).turn_index == 1
            assert "SHUTTING_DOWN" in reasons

    with daemon(tmp_path, "--env", "echo") as (process, address):
        family = _family(process.pid)
        asyncio.run(main(process, address))
        assert process.wait(timeout=WAIT_S) == 0
        assert not any(is_alive(pid) for pid in family)
        assert not list(tmp_path.glob("longturn-serve-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_whose_workers_are_not_ready_yet(tmp_path: Path, number: int) -> None:
    mark = tmp_path / "mark"
    command = [sys.executable, "-m", "env_server", "--env", f"{ODD}:SlowStartEnvironment", "--port", "0"]
    env = os.environ | {"TMPDIR": str(tmp_path), "WARM_UP_MARK": str(mark)}
    process = subprocess.Popen([*command, "--workers", "1"], stderr=subprocess.PIPE, text=True, env=env)
    try:
        wait_until(mark.exists)
        family = _family(process.pid)
        process.send_signal(number)
        assert process.wait(timeout=WAIT_S) == 0
        assert not any(is_alive(pid) for pid in family)
        assert not list(tmp_path.glob("longturn-serve-*"))
    finally:
        process.kill()
        _, errors = process.communicate()
    assert "Traceback" not in errors


async def _refusal_of_a_start(stub: environment_pb2_grpc.EnvironmentServiceAsyncStub) -> str:
    try:
        await stub.StartEpisode(start_request())
    except grpc.aio.AioRpcError as error:
        return error_info(error).reason if error.trailing_metadata() else error.code().name
    return "STARTED"


def test_a_drain_ends_at_its_time_limit(tmp_path: Path) -> None:
    with (
        daemon(tmp_path, "--env", "echo", "--set", "drain_timeout_s=0.3") as (process, address),
        grpc.insecure_channel(address) as channel,
    ):
        stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
        started = stub.StartEpisode(start_request(knobs={"step_sleep_ms": 60_000.0}))
        step = environment_pb2.StepRequest(
            episode_id=started.episode_id, episode_token=started.episode_token, action="amber"
        )
        call = stub.Step.future(step)
        step.action = "birch"
        with pytest.raises(grpc.RpcError):  # whichever of the two came first is in flight from now on
            stub.Step(step, timeout=5.0)
        process.terminate()
        assert process.wait(timeout=WAIT_S) == 0
        assert isinstance(call.exception(), grpc.RpcError)


def test_workers_have_folders_of_their_own_and_die_alone(tmp_path: Path) -> None:
    with daemon(tmp_path, "--env", "echo") as (process, _):
        cwds = {os.readlink(f"/proc/{pid}/cwd") for pid in _family(process.pid) if _is_worker(pid)}
        assert len(cwds) == 3
        assert all(not os.listdir(cwd) for cwd in cwds)


def _is_worker(pid: int) -> bool:
    return b"env_server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--env", "ekho"], "did you mean 'echo'"),
        (["--env", f"{ODD}:NoSuchEnvironment"], "no subclass"),
        (["--env", f"{ODD}:BrokenStartEnvironment"], "no simulator here"),
        (["--env", f"{ODD}:SlowStartEnvironment", "--set", "worker_ready_timeout_s=0.5"], "ready (not within 0.5 s)"),
        (["--env", "no_such_module:X"], "no module named"),
        (["--env", "echo", "--host", "0.0.0.0"], "--insecure"),
        (["--env", "echo", "--set", "prot=1"], "did you mean port"),
    ],
)
def test_a_server_that_cannot_start_says_why_in_a_line(options: list[str], hint: str) -> None:
    command = [sys.executable, "-m", "env_server", "--port", "0", "--workers", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert hint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_metrics_are_scraped_from_loopback(tmp_path: Path) -> None:
    with daemon(tmp_path, "--env", "echo", "--set", "metrics_port=0") as (_, address):
        with grpc.insecure_channel(address) as channel:
            environment_pb2_grpc.EnvironmentServiceStub(channel).StartEpisode(start_request())
        scraped = json.loads((tmp_path / "ready.json").read_text())["metrics_address"]
        with urllib.request.urlopen(f"http://{scraped}/metrics", timeout=10.0) as response:
            assert b"longturn_server_episode_num_started_total 1.0" in response.read()


def test_an_environment_that_cannot_be_had_is_left_out_only_when_nobody_named_it(tmp_path: Path) -> None:
    (tmp_path / "textworld.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'textworld'\", name='textworld')"
    )
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    with daemon(tmp_path, PYTHONPATH=path) as (_, address), grpc.insecure_channel(address) as channel:
        stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
        listed = stub.ListEnvironments(environment_pb2.ListEnvironmentsRequest()).environments
        names = {info.name for info in listed}
        assert "echo" in names
        assert "textworld" not in names


def test_a_port_in_use_names_the_setting(tmp_path: Path) -> None:
    with daemon(tmp_path, "--env", "echo") as (_, address):
        command = [sys.executable, "-m", "env_server", "--env", "echo", "--set", f"port={address.rpartition(':')[2]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert (done.returncode, "env_server.port" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["textworld", "env_server.environments.textworld_tracking:LogicTracker"])
def test_a_missing_library_names_the_extra(tmp_path: Path, name: str) -> None:
    (tmp_path / "textworld.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'textworld'\", name='textworld')"
    )
    command = [sys.executable, "-m", "env_server", "--env", name, "--port", "0", "--workers", "1"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=env)
    assert done.returncode == 2
    assert "textworld" in done.stderr.splitlines()[-1]
    assert "in the checkout run: make install" in done.stderr.splitlines()[-1]
    assert "'.[server-textworld]'" in done.stderr.splitlines()[-1]


def test_the_server_loads_no_torch_and_no_game_library(tmp_path: Path) -> None:
    program = "import sys, env_server.server, env_server.commands; print({'torch', 'textworld'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "set()"
