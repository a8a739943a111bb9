"""SIGKILL of the learner's process, then resume: nothing lost, nothing twice, the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from learner.checkpoint_files import find_checkpoints
from learner.config import LearnConfig
from longturn.config import dump_config
from tests.support.learner_run import audited, rows_of, small_config, train_with_pool
from tests.support.scripted_pool import ScriptedPool, made_up

ROOT = Path(__file__).parents[2]
NUM_BATCHES = 6


def config_of(folder: Path, model_dir: Path, task_path: Path) -> LearnConfig:
    return small_config(
        folder,
        model_dir,
        task_path,
        batch={"num_batches": NUM_BATCHES, "max_policy_lag": 1},
        checkpoint={"every": 2},
    )


def start_process(config: LearnConfig) -> subprocess.Popen[bytes]:
    config.run_dir.mkdir(parents=True, exist_ok=True)
    path = config.run_dir / "config.toml"
    path.write_text(dump_config(config, table="learner"), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", "learner", "--config", str(path), "--resume", "auto"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def kill_when(process: subprocess.Popen[bytes], pool: ScriptedPool, condition: Callable[[], bool]) -> None:
    """SIGKILL as soon as the condition holds, looked at whenever the pool heard something."""
    while process.poll() is None:
        pool.heard.clear()
        if condition():
            process.send_signal(signal.SIGKILL)
            break
        pool.heard.wait(0.005)
    assert process.wait(60) == -signal.SIGKILL, "the learner ended before it could be killed"


def newest_step(config: LearnConfig) -> int:
    return max(int(str(row["training_step"])) for row in rows_of(config.run_dir))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_learner_killed_at_four_points_ends_with_the_weights_of_an_uninterrupted_run(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    whole = config_of(tmp_path / "whole", model_dir, task_path)
    train_with_pool(whole)
    broken = config_of(tmp_path / "broken", model_dir, task_path)
    metrics = broken.run_dir / "metrics" / "learner.jsonl"
    with ScriptedPool(broken.dispatch_address, script=made_up) as pool:
        kill_when(start_process(broken), pool, lambda: len(pool.acks) >= 3)
        kill_when(start_process(broken), pool, lambda: metrics.exists() and len(rows_of(broken.run_dir)) >= 1)
        kill_when(start_process(broken), pool, lambda: any(broken.run_dir.glob("checkpoints/*step-000002*")))
        kill_when(start_process(broken), pool, lambda: newest_step(broken) >= 3)
        assert start_process(broken).wait(300) == 0
        assert pool.ended.wait(20)
    assert audited(broken.run_dir).num_batches == NUM_BATCHES
    assert audited(whole.run_dir).num_batches == NUM_BATCHES
    assert [version for version in pool.announced if version] == sorted(
        {version for version in pool.announced if version}
    )
    expected = load_file(find_checkpoints(whole.run_dir / "checkpoints")[-1].path / "model.safetensors")
    found = load_file(find_checkpoints(broken.run_dir / "checkpoints")[-1].path / "model.safetensors")
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def test_a_stopped_run_goes_on_where_its_checkpoint_is(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    parted = config_of(tmp_path / "parted", model_dir, task_path)
    train_with_pool(parted.model_copy(update={"batch": parted.batch.model_copy(update={"num_batches": 4})}))
    reason, pool = train_with_pool(parted)
    assert reason == "COMPLETED"
    assert [row["training_step"] for row in rows_of(parted.run_dir)] == [1, 2, 3, 4, 5, 6]
    assert [row["run_epoch"] for row in rows_of(parted.run_dir)] == [1, 1, 1, 1, 2, 2]
    assert pool.announced[-1] == 7
    audited(parted.run_dir)
