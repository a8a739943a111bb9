"""Asynchronous training on TextWorld against a real SGLang that somebody else keeps running."""

from __future__ import annotations

import functools
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import pytest

from longturn.codec import trajectory_from_bytes
from longturn.records import LogprobConvention, Trajectory
from tests.longturn.launch.test_train import assert_history_is_whole, ended, has_finished_or_trained, train
from tests.support.sglang_server import SglangServer, free_port
from tests.support.waiting import wait_until

CONFIG = Path(__file__).with_name("textworld.toml")
KEY = "a key of its own"
PHASE_LIMIT_S = 1500.0
BF16_TOLERANCE = 2e-2


class KeptServer:
    """SGLang on one port, started anew by whoever keeps it."""

    def __init__(self, model: Path, log: Path, port: int) -> None:
        self._start = functools.partial(
            SglangServer, model, log, port=port, dtype="bfloat16", options=["--api-key", KEY]
        )
        self.server = self._start()

    def kill_and_start(self) -> None:
        """SIGKILL, then again from the weights that it was first started with."""
        self.server.kill()
        self.server = self._start()


@contextmanager
def kept_server(model: Path, log: Path, port: int) -> Iterator[KeptServer]:
    kept = KeptServer(model, log, port)
    try:
        yield kept
    finally:
        kept.server.stop()


def trained_trajectories(folder: Path) -> list[Trajectory]:
    with sqlite3.connect(folder / "ledger.db") as ledger:
        rows = ledger.execute("SELECT trajectory FROM trajectories").fetchall()
    return [trajectory_from_bytes(data) for (data,) in rows]


@pytest.mark.sglang
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", ["disk", "broadcast"])
def test_a_run_on_sglang_survives_kill_9_of_engine_pool_and_env_server(tmp_path: Path, transport: str) -> None:
    folder, port = tmp_path / "runs" / "sglang", free_port()
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    overrides = (
        f'run.engine_urls=["http://127.0.0.1:{port}"]',
        f'run.engine_api_key_file="{key_file}"',
        f'learner.publish.transport="{transport}"',
    )
    options = [word for override in overrides for word in ("--set", override)]
    with train(tmp_path, "--config", str(CONFIG), *options) as process:
        imitated = folder / "phases" / "imitation.json"
        wait_until(lambda: imitated.exists() or process.poll() is not None, limit_s=PHASE_LIMIT_S)
        assert process.poll() is None, ended(process)
        with kept_server(folder / "warmstart" / "model", tmp_path / "sglang.log", port) as kept:
            for number, name in enumerate(("engine", "actors", "env_server")):
                has_moved_on = functools.partial(has_finished_or_trained, process, folder, 3 + 5 * number)
                wait_until(has_moved_on, limit_s=PHASE_LIMIT_S)
                assert process.poll() is None, ended(process)
                if name == "engine":
                    kept.kill_and_start()
                else:
                    os.kill(json.loads((folder / "ready" / f"{name}.json").read_text())["pid"], signal.SIGKILL)
            code, stdout, stderr = ended(process)
    assert code == 0, stdout + stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["batches_trained"] == 24
    assert set(summary["restarts"]) == {"actors", "env_server"}
    assert_history_is_whole(folder)
    assert_sglang_sampled(folder)


def assert_sglang_sampled(folder: Path) -> None:
    """Every trained token came from SGLang, under an announced version, with logprobs that the learner shares."""
    trajectories = trained_trajectories(folder)
    engines = {trajectory.engine for trajectory in trajectories}
    assert {(engine.name, engine.version) for engine in engines if engine} == {("sglang", "0.5.23")}
    assert {engine and engine.logprob_convention for engine in engines} == {LogprobConvention.AFTER_TEMPERATURE}
    assert max(version for trajectory in trajectories for version in trajectory.policy_versions) >= 20
    lines = (folder / "metrics" / "learner.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "batch" in row]
    on_policy = [row["learner/mismatch/mean_abs_log_weight"] for row in rows if row["learner/lag/token_mean"] == 0]
    assert on_policy, "not one batch was sampled by the newest weights alone"
    assert fmean(on_policy) < BF16_TOLERANCE
