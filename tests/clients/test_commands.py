"""The commands as programs: what they print, write and answer to bad input."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.renderer import FormatRenderer
from longturn.cli import main
from longturn.records import Task
from longturn.status import get_status
from longturn.task_file import TaskEntry, read_tasks, write_tasks
from longturn.trajectory_file import read_trajectories
from tests.clients.daemons import ROOT
from tests.clients.scripted_engine import echo_script, serving_engine
from tests.clients.scripted_learner import ScriptedLearner, group
from tests.env_server.processes import daemon
from tests.support.waiting import until

ENTRIES = [
    TaskEntry(
        task=Task(environment="echo", task_id=f"echo/test/{index:06d}", knobs={"horizon": 3, "observation_bytes": 100}),
        seed=index,
        kind=f"kind-{index % 2}",
    )
    for index in range(10)
]


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "longturn", *map(str, arguments)]


def _run(*arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    result = subprocess.run(_command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=90, env=environment)
    assert result.returncode == expect, result.stderr
    return result


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Gives the process its log handlers back after a command set up its own."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A task file of ten short echo tasks."""
    path = tmp_path / "tasks.jsonl"
    write_tasks(path, ENTRIES)
    return path


def test_envs_tasks_writes_a_task_file_and_appends_to_it(address: str, tmp_path: Path) -> None:
    path = tmp_path / "listed.jsonl"
    _run("envs", "tasks", "--server", address, "--env", "echo", "--skip", 2, "--limit", 3, "--out", path)
    _run("envs", "tasks", "--server", address, "--env", "echo", "--split", "test", "--limit", 1, "--task-seed", 7,
         "--append", "--out", path)  # fmt: skip
    entries = read_tasks(path)
    assert [(entry.task.task_id, entry.seed) for entry in entries] == [
        ("echo/train/000002", 0),
        ("echo/train/000003", 0),
        ("echo/train/000004", 0),
        ("echo/test/000000", 7),
    ]
    mixed = tmp_path / "mixed.jsonl"
    _run("envs", "tasks", "--server", address, "--env", "echo", "--mix", '{"num_tasks": 2, "skip": 1}',
         "--mix", '{"num_tasks": 1}', "--out", mixed)  # fmt: skip
    assert [entry.task.task_id[-1] for entry in read_tasks(mixed)] == ["1", "2", "0"]
    assert "echo" in _run("envs", "list", "--server", address).stdout
    assert "4 tasks prepared" in _run("envs", "prepare", "--server", address, "--tasks", path).stderr


def test_eval_prints_one_json_object_and_writes_every_episode(address: str, tasks: Path, tmp_path: Path) -> None:
    results, trajectories = tmp_path / "results.json", tmp_path / "trajectories.bin"
    run = _run("eval", "--server", address, "--tasks", tasks, "--policy", "oracle", "--json", "--out", results,
               "--record", trajectories)  # fmt: skip
    printed = json.loads(run.stdout)
    assert (printed["success"], printed["temperature"]) == (1.0, None)
    assert printed["ci95"] == pytest.approx([0.7225, 1.0], abs=1e-4)
    assert (printed["episodes"], printed["score_mean"], printed["turns_mean"]) == (10, 1.0, 3.0)
    assert sorted(printed["by_kind"]) == ["kind-0", "kind-1"]
    panel = json.loads(results.read_text())["panel"]
    assert [row["task_id"] for row in panel] == [entry.task.task_id for entry in ENTRIES]
    assert [item.task.task_id for item in read_trajectories(trajectories)] == [row["task_id"] for row in panel]


def test_eval_plays_an_engine_and_its_samples_repeat(address: str, tasks: Path, tokenizer_path: Path) -> None:
    async def play() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            arguments = ("eval", "--server", address, "--tasks", tasks, "--policy", engine.url, "--tokenizer",
                         tokenizer_path, "--temperature", "0.5", "--limit", 4, "--seed", 3)  # fmt: skip
            run = await asyncio.to_thread(_run, *arguments, "--json")
            first = {(ask.input_ids, ask.sampling["sampling_seed"]) for ask in engine.asks}
            engine.asks.clear()
            table = await asyncio.to_thread(_run, *arguments)
            assert {(ask.input_ids, ask.sampling["sampling_seed"]) for ask in engine.asks} == first
            assert {ask.sampling["temperature"] for ask in engine.asks} == {0.5}
        assert json.loads(run.stdout)["success"] == 1.0
        assert "success" in table.stdout

    asyncio.run(play())


def test_act_records_demonstrations_in_the_order_of_the_tasks(address: str, tasks: Path, tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.bin"
    _run("act", "--record", path, "--policy", "oracle", "--tasks", tasks, "--num-episodes", 13, "--server", address,
         "--with-progress")  # fmt: skip
    recorded = list(read_trajectories(path))
    expected = [ENTRIES[index % 10].task.task_id for index in range(13)]
    assert [item.task.task_id for item in recorded] == expected
    assert all(item.success and item.used_privileged and item.initial_progress == 0.0 for item in recorded)


def breaking(at_turn: int) -> TaskEntry:
    knobs = {"fail_at_turn": at_turn}
    return TaskEntry(task=Task(environment="faulty", task_id="faulty/test/000000", knobs=knobs), seed=at_turn)


def test_recording_goes_on_past_a_broken_game_and_lists_it(address: str, tasks: Path, tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.bin"
    write_tasks(tasks, [ENTRIES[0], breaking(1), *ENTRIES[1:]])
    arguments = ("act", "--record", path, "--policy", "oracle", "--tasks", tasks, "--server", address)
    refused = _run(*arguments, expect=2).stderr.splitlines()
    assert not path.exists()
    assert refused[-2].startswith("broken: faulty/test/000000#1 ")
    assert "1 of 11 games broke" in refused[-1]
    assert "--max-broken-share = 0.02" in refused[-1]
    assert "broken: faulty/test/000000#1 " in _run(*arguments, "--max-broken-share", 0.1).stderr
    assert [item.task for item in read_trajectories(path)] == [entry.task for entry in ENTRIES]


def test_preparing_goes_on_past_a_broken_game_and_lists_it(address: str, tasks: Path) -> None:
    write_tasks(tasks, [breaking(0), *ENTRIES])
    arguments = ("envs", "prepare", "--tasks", tasks, "--server", address)
    refused = _run(*arguments, expect=2).stderr.splitlines()
    assert refused[-3] == "10 tasks prepared"
    assert refused[-2].startswith("broken: faulty/test/000000#0 ")
    assert "1 of 11 games broke" in refused[-1]
    assert "10 tasks prepared" in _run(*arguments, "--max-broken-share", 0.1).stderr
    write_tasks(tasks, [breaking(0)])
    assert "all 1 games broke" in _run(*arguments, "--max-broken-share", 1, expect=2).stderr.splitlines()[-1]


def test_knobs_of_the_command_line_reach_every_episode_and_come_before_a_tasks_own(
    address: str, tasks: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trajectories.bin"
    shared = ("--policy", "oracle", "--tasks", tasks, "--server", address, "--record", path, "--knob", "horizon=2")
    for command in (("eval", "-s", "knobs.horizon=9"), ("act",)):
        _run(*command, *shared)
        assert {item.task.knobs["horizon"] for item in read_trajectories(path)} == {2}
    listed = tmp_path / "listed.jsonl"
    _run("envs", "tasks", "--env", "echo", "--limit", 1, "--knob", "horizon=4", "--out", listed, "--server", address)
    assert [entry.task.knobs for entry in read_tasks(listed)] == [{"horizon": 4}]


def test_a_random_player_of_a_puzzle_acts_validly_once_it_is_told_what_is_admissible(tmp_path: Path) -> None:
    with daemon(tmp_path, "--env", "rubiks_2x2") as (_, server):
        arguments = ("eval", "--policy", "random", "--env", "rubiks_2x2", "--limit", 2, "--max-turns", 5, "--json")
        blind = _run(*arguments, "--server", server)
        told = _run(*arguments, "--server", server, "--knob", "admissible_actions=true")
    shares = [json.loads(run.stdout)["action_valid_share"] for run in (blind, told)]
    assert shares == [0.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "--policy", "random", "--env", "echo", "--knob", "horizn=2"), "did you mean 'horizon'?"),
        (("eval", "--policy", "random", "--env", "echo", "--knob", "horizon=0"), "horizon of echo is a whole number"),
        (("eval", "--policy", "random", "--env", "echo", "--knob", "horizon"), "--knob 'horizon' has not the form"),
        (("envs", "tasks", "--env", "echo", "--knob", "horizon=long"), "got 'long'"),
        (("act", "--knob", "horizon=2"), "--knob would do nothing"),
        (("act", "--max-broken-share", 0.5), "--max-broken-share would do nothing"),
        (("eval", "--policy", "oracel", "--env", "echo"), "did you mean oracle?"),
        (("eval", "--policy", "random"), "--tasks FILE, or --env NAME"),
        (("eval", "--policy", "random", "--tasks", "missing.jsonl"), "longturn envs tasks --out missing.jsonl"),
        (("eval", "--policy", "random", "--env", "ecko"), "ecko"),
        (("eval", "--policy", "random", "--env", "echo", "--split", "dev"), "dev"),
        (("eval", "--policy", "http://127.0.0.1:9", "--env", "echo", "--limit", 1), "renderer.tokenizer"),
        (("eval", "--policy", "noisy_oracle", "--policy-set", "nose=1", "--env", "echo"), "noise"),
        (("eval", "--policy", "random", "--env", "echo", "-s", "env_server.adress=x"), "did you mean address?"),
        (("act", "-s", "status_port=70000"), "act.status_port"),
        (("act", "-s", "metrics_port=70000"), "act.metrics_port"),
        (("act", "--record", "x.bin"), "--tasks FILE"),
        (("act", "--policy", "oracle"), "--policy would do nothing"),
        (("act", "--policy-set", "noise=0"), "--policy-set would do nothing"),
        (("act", "--tasks", "x.jsonl"), "--tasks would do nothing"),
        (("act", "--num-episodes", 3), "--num-episodes would do nothing"),
        (("act", "--max-turns", 0), "--max-turns would do nothing"),
        (("act", "--seed", 0), "--seed would do nothing"),
        (("act", "--with-progress"), "--with-progress would do nothing"),
        (("act", "--record", "x.bin", "--tasks", "x.jsonl", "--ready-file", "r"), "--ready-file would do nothing"),
        (("eval", "--policy", "http://127.0.0.1:9", "--env", "echo", "--policy-set", "a=1"), "--policy-set would do"),
        (("eval", "--policy", "random", "--env", "echo", "--temperature", 1.0), "--temperature would do nothing"),
        (("eval", "--policy", "random", "--env", "echo", "--tokenizer", "t"), "--tokenizer would do nothing"),
        (("eval", "--policy", "random", "--env", "echo", "--api-key", "k"), "--api-key would do nothing"),
        (("eval", "--policy", "random", "--env", "echo", "--max-new-tokens", 9), "--max-new-tokens would do nothing"),
        (("eval", "--policy", "random", "--env", "echo", "--max-episode-tokens", 9), "--max-episode-tokens would"),
        (("eval", "--policy", "random", "--tasks", "x.jsonl", "--env", "echo"), "--env would do nothing"),
        (("eval", "--policy", "random", "--tasks", "x.jsonl", "--split", "test"), "--split would do nothing"),
        (("eval", "--policy", "random", "--tasks", "x.jsonl", "--filter", "a=1"), "--filter would do nothing"),
        (("eval", "--policy", "random", "--tasks", "x.jsonl", "--task-seed", 1), "--task-seed would do nothing"),
        (("eval", "--policy", f"scripted:{sys.executable}", "--env", "echo"), "needs an action per line"),
        (("eval", "--policy", "random", "--tasks", sys.executable), "is no task file"),
        (("eval", "--policy", "random", "--env", "echo", "--config", sys.executable), "is not valid TOML"),
        (("eval", "--policy", "random", "--env", "echo", "--config", ROOT), "cannot be read"),
        (("eval", "--policy", "scripted:x", "--env", "echo", "--policy-set", "noise=0"), "takes no settings"),
        (("envs", "tasks", "--env", "echo", "--append"), "--append would do nothing"),
        (("envs", "tasks", "--env", "echo", "--mix", '{"num_tasks": 0}'), "num_tasks: Input should be"),
        (("envs", "tasks", "--env", "echo", "--mix", '{"num_tasks": 1}', "--skip", 1), "--skip would do nothing"),
        (("play", "--env", "echo", "--task", "echo/train/000001", "--split", "test"), "--split would do nothing"),
        (("envs", "tasks", "--env", "echo", "--filter", "level"), "name=value"),
        (("play", "--env", "echo", "--task", "echo/train/1"), "echo/train/000001"),
    ],
)
def test_bad_input_is_one_line_that_names_what_mends_it(
    address: str,
    arguments: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_logging: None,
) -> None:
    server = () if arguments[0] == "act" else ("--server", address)
    monkeypatch.setattr(sys, "argv", ["longturn", *map(str, (*arguments, *server))])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("longturn: ")
    assert message in last


def test_an_absent_server_is_named_with_its_command() -> None:
    result = _run("eval", "--policy", "random", "--env", "echo", "--server", "127.0.0.1:9",
                  "-s", "env_server.connect_budget_s=0.5", expect=2)  # fmt: skip
    lines = result.stderr.strip().splitlines()
    assert "address=127.0.0.1:9 attempt=1" in lines[0]
    assert "127.0.0.1:9" in lines[-1]
    assert "longturn serve" in lines[-1]


def test_an_absent_engine_is_named_with_its_command(address: str, tokenizer_path: Path) -> None:
    result = _run("eval", "--policy", "http://127.0.0.1:9", "--tokenizer", tokenizer_path, "--env", "echo",
                  "--limit", 1, "--server", address, "-s", "env_server.connect_budget_s=0.5", expect=2)  # fmt: skip
    lines = result.stderr.strip().splitlines()
    assert "engine does not answer" in lines[0]
    assert "engine at http://127.0.0.1:9 did not answer within 0.5 s" in lines[-1]
    assert lines[-1].endswith("start it with `longturn engine` or change --policy")


def test_a_person_plays_in_the_terminal(address: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        _command("play", "--server", address, "--env", "echo", "--oracle"),
        cwd=ROOT,
        input="amber\n/quit\n",
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    assert "Turn 1 of 50" in result.stdout
    assert "ABORTED by CLIENT_REQUEST after 1 turns: not won" in result.stdout


def _act(address: str, tokenizer: Path, learner: ScriptedLearner, folder: Path, *more: str) -> subprocess.Popen[str]:
    settings = [
        f"env_server.address={address}",
        f"renderer.tokenizer={tokenizer}",
        f"dispatch.address={learner.address}",
        f"run_dir={folder}",
        "pool_id=p",
        *more,
    ]
    command = _command("act", "--ready-file", folder / "ready.json")
    command += [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def test_the_act_daemon_plays_a_run_and_ends_with_it(
    address: str, tokenizer_path: Path, renderer: FormatRenderer, tmp_path: Path
) -> None:
    async def play() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            task = ENTRIES[0].task
            with ScriptedLearner(
                tmp_path,
                groups=[group(f"g{index}", task) for index in range(3)],
                engine_urls=[engine.url],
                tokenizer_hash=renderer.tokenizer_hash,
            ) as learner:
                process = _act(address, tokenizer_path, learner, tmp_path)
                _, stderr = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0, stderr
        assert len(learner.trajectories) == 12
        rows = (tmp_path / "metrics" / "actors-p.jsonl").read_text().splitlines()
        assert json.loads(rows[-1])["num_finished_episodes"] == 12

    asyncio.run(play())


def test_the_act_daemon_says_whom_it_waits_for_and_stops_on_a_signal(
    address: str, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def play() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: None
            groups = [group("g", ENTRIES[0].task)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                process = _act(address, tokenizer_path, learner, tmp_path)
                await until(lambda: len(engine.asks) == 4)
                status = get_status(json.loads((tmp_path / "ready.json").read_text())["status_address"])
                assert (status.daemon, status.phase, status.facts["run_id"]) == ("actors", "playing", "run-1")
                process.send_signal(signal.SIGTERM)
                _, stderr = await asyncio.to_thread(process.communicate, timeout=30)
        assert process.returncode == 128 + signal.SIGTERM, stderr
        assert "Traceback" not in stderr

    asyncio.run(play())


def test_measures_that_find_no_room_end_the_act_daemon(address: str, tokenizer_path: Path, tmp_path: Path) -> None:
    async def play() -> None:
        (tmp_path / "metrics").mkdir()
        (tmp_path / "metrics" / "actors-p.jsonl").symlink_to("/dev/full")
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: None
            groups = [group("g", ENTRIES[0].task)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                process = _act(address, tokenizer_path, learner, tmp_path, "metrics_interval_s=0.1")
                _, stderr = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 2, stderr
        assert "actors-p.jsonl cannot be written" in stderr.splitlines()[-1]
        assert "Traceback" not in stderr

    asyncio.run(play())


def test_a_killed_pool_loses_no_finished_trajectory(address: str, tokenizer_path: Path, tmp_path: Path) -> None:
    async def play() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("g", ENTRIES[0].task)]
            with ScriptedLearner(
                tmp_path, groups=groups, engine_urls=[engine.url], ack_for=lambda message: None
            ) as deaf:
                process = _act(address, tokenizer_path, deaf, tmp_path)
                spool = tmp_path / "spool" / "p"
                await until(lambda: spool.exists() and len(list(spool.glob("*.submission"))) == 4)
                process.kill()
                await asyncio.to_thread(process.communicate)
            num_asks = len(engine.asks)
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                process = _act(address, tokenizer_path, learner, tmp_path)
                _, stderr = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0, stderr
        assert sorted(learner.members("g")) == [0, 1, 2, 3]
        assert len(engine.asks) == num_asks

    asyncio.run(play())


def test_the_commands_load_no_torch_and_no_grpc_for_their_help() -> None:
    code = "import sys, clients.commands; print(sorted({'torch', 'grpc', 'aiohttp', 'tokenizers'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr


def test_the_pool_runs_without_torch() -> None:
    code = "import sys, clients.act, clients.evaluate, clients.listing; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "False", result.stderr
