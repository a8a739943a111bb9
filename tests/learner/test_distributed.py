"""Several ranks of one training step: the same losses and weights as one, one decision, and no hang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from learner.checkpoint_files import find_checkpoints
from learner.config import LearnConfig
from learner.distributed.group import GroupRanks
from learner.distributed.messages import batch_from_json, batch_to_json
from longturn.config import dump_config
from tests.learner.batches import batch_of
from tests.support.learner_run import audited, rows_of, small_config, train_with_pool
from tests.support.scripted_pool import ScriptedPool
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
WAIT_S = 180.0


@given(costs=st.lists(st.integers(1, 1000), max_size=30), size=st.integers(1, 5))
def test_every_piece_belongs_to_one_rank_and_no_rank_has_much_more_to_do(costs: list[int], size: int) -> None:
    shares = [GroupRanks(rank, size).share(costs) for rank in range(size)]
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(costs[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_a_batch_survives_being_told() -> None:
    taken = batch_of().taken
    assert batch_from_json(batch_to_json(taken)) == taken


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(config: LearnConfig, path: Path) -> list[str]:
    path.write_text(dump_config(config, table="learner"), encoding="utf-8")
    return ["-m", "learner", "--config", str(path), "--log-format", "json"]


@contextmanager
def ranks_of(config: LearnConfig, size: int, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Ranks started one by one, as torchrun would."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    line = [sys.executable, *command(config, folder / "config.toml")]
    started = [start(line, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(size)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def start(line: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        line,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def final_weights(config: LearnConfig) -> dict[str, torch.Tensor]:
    return load_file(find_checkpoints(config.run_dir / "checkpoints")[-1].path / "model.safetensors")


def assert_equal_runs(one: LearnConfig, several: LearnConfig) -> None:
    for first, second in zip(rows_of(one.run_dir), rows_of(several.run_dir), strict=True):
        for name in ("learner/loss/total", "learner/gradient/norm", "learner/entropy/token_mean"):
            assert second[name] == pytest.approx(first[name], abs=1e-5), name
    expected = final_weights(one)
    for name, tensor in final_weights(several).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5)
    audited(several.run_dir)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ranks_under_torchrun_train_as_one(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    one = small_config(tmp_path / "one", model_dir, task_path, reference={"kl": "loss"})
    train_with_pool(one)
    two = small_config(tmp_path / "two", model_dir, task_path, reference={"kl": "loss"})
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    line = [sys.executable, *launcher, "--master-port", str(free_port()), *command(two, tmp_path / "config.toml")]
    with ScriptedPool(two.dispatch_address):
        process = start(line, {})
        code, said = outcome(process)
    assert code == 0, said
    assert_equal_runs(one, two)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_more_ranks_than_rows_train_as_one(tmp_path: Path, model_dir: Path, task_path: Path, trunk: str) -> None:
    changes: dict[str, dict[str, object]] = {
        "batch": {"groups_per_step": 1, "group_size": 2, "num_batches": 3},
        "snr": {"filter": "none"},
        "advantage": {"estimator": "gae"},
        "critic": {"trunk": trunk, "warmup_steps": 1, "learning_rate": 1e-3},
    }
    one = small_config(tmp_path / "one", model_dir, task_path, **changes)
    train_with_pool(one)
    three = small_config(tmp_path / "three", model_dir, task_path, **changes)
    with ScriptedPool(three.dispatch_address), ranks_of(three, 3, tmp_path) as ranks:
        found = [outcome(process) for process in ranks]
    assert [code for code, _ in found] == [0, 0, 0], found
    assert_equal_runs(one, three)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_ranks_skip_a_step_that_is_not_finite(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(
        tmp_path / "run",
        model_dir,
        task_path,
        batch={"num_batches": 9},
        optimizer={"learning_rate": 1e30},
        stop={"max_skipped_in_a_row": 2},
    )
    with ScriptedPool(config.dispatch_address), ranks_of(config, 2, tmp_path) as ranks:
        found = [outcome(process) for process in ranks]
    assert [code for code, _ in found] == [2, 2], found
    assert all("the run ended with NON_FINITE" in said for _, said in found)
    assert [row["outcome"] for row in rows_of(config.run_dir)][-2:] == ["NON_FINITE"] * 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_leader_whose_follower_is_killed_ends_with_the_reason(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 1000})
    metrics = config.run_dir / "metrics" / "learner.jsonl"
    with ScriptedPool(config.dispatch_address), ranks_of(config, 2, tmp_path) as (leader, follower):
        wait_until(lambda: metrics.is_file() and len(rows_of(config.run_dir)) > 1, limit_s=WAIT_S)
        follower.kill()
        code, said = outcome(leader)
    assert code == 2
    assert "another rank is gone" in said
    assert find_checkpoints(config.run_dir / "checkpoints")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_that_are_asked_to_stop_end_and_resume(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 1000})
    metrics = config.run_dir / "metrics" / "learner.jsonl"
    with ScriptedPool(config.dispatch_address), ranks_of(config, 2, tmp_path) as ranks:
        wait_until(lambda: metrics.is_file() and len(rows_of(config.run_dir)) > 1, limit_s=WAIT_S)
        for process in ranks:
            process.send_signal(signal.SIGTERM)
        found = [outcome(process) for process in ranks]
    assert [code for code, _ in found] == [130, 130], found
    step = find_checkpoints(config.run_dir / "checkpoints")[-1].training_step
    # Another number of ranks may go on: every rank holds the whole state.
    shorter = config.model_copy(update={"batch": config.batch.model_copy(update={"num_batches": step + 1})})
    assert train_with_pool(shorter)[0] == "COMPLETED"
