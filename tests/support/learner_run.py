"""Runs a learner in a thread of the test process, against a scripted pool."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from learner.config import LearnConfig
from learner.ledger.audit import AuditReport, audit, newest_checkpoint
from tests.support.scripted_pool import Script, ScriptedPool, made_up


def small_config(run_dir: Path, model_dir: Path, task_path: Path, **changes: Mapping[str, object]) -> LearnConfig:
    """Two groups of four per step, three batches, no engine; `changes` are merged table by table."""
    tree: dict[str, dict[str, object] | object] = {
        "run_dir": run_dir,
        "seed": 3,
        "tensorboard": False,
        "model": {"path": model_dir},
        "tasks": {"path": task_path},
        "batch": {"groups_per_step": 2, "group_size": 4, "num_batches": 3, "max_policy_lag": 0},
        "publish": {"require_engine": False},
        "optimizer": {"learning_rate": 1e-3},
        "dispatch": {"heartbeat_s": 0.2, "pool_timeout_s": 2.0},
        "checkpoint": {"every": 1, "keep": 100},
        "diagnostics": {"every": 2, "num_samples": 4},
        "snr": {"epsilon": 0.0},
    }
    for table, values in changes.items():
        present = tree.get(table, {})
        tree[table] = {**present, **values} if isinstance(present, dict) else values
    return LearnConfig.model_validate(tree)


class LearnerThread:
    """`learner.session.learn` in a thread; `join` returns the reason or raises its error."""

    def __init__(self, config: LearnConfig, *, resume: str = "auto") -> None:
        self.config = config
        self._resume = resume
        self._result: list[str] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from learner.session import learn

        try:
            self._result.append(learn(self.config, resume=self._resume, ready_file=None))
        except BaseException as error:  # noqa: BLE001  # raised again by `join`
            self._error = error

    def join(self, timeout_s: float = 100.0) -> str:
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        assert self._result, "the learner did not end in time"
        return self._result[0]


def train_with_pool(config: LearnConfig, script: Script = made_up, *, resume: str = "auto") -> tuple[str, ScriptedPool]:
    """Train to the end with one scripted pool."""
    with ScriptedPool(config.dispatch_address, script=script) as pool:
        return LearnerThread(config, resume=resume).join(), pool


def rows_of(run_dir: Path) -> list[dict[str, object]]:
    """Metric rows of the batches."""
    lines = (run_dir / "metrics" / "learner.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "batch" in row]


def audited(run_dir: Path, *, num_slots_closed: int | None = 0) -> AuditReport:
    """The audit of the newest checkpoint; fails the test if it finds a problem, or other than these closed slots."""
    report = audit(run_dir / "ledger.db", newest_checkpoint(run_dir))
    assert report.problems == []
    assert num_slots_closed in (None, report.num_slots_closed)
    return report
