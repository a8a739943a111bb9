"""The whole learner with a scripted pool over real ZMQ and SQLite."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.learner_run import audited, rows_of, small_config, train_with_pool
from tests.support.scripted_pool import GiveUp, Member, made_up


def test_a_run_trains_all_batches_and_its_history_is_proven(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path)
    reason, pool = train_with_pool(config)
    assert reason == "COMPLETED"
    assert pool.end_reason == "COMPLETED"
    report = audited(config.run_dir)
    assert report.num_batches == 3
    assert report.num_training_steps == 3
    assert pool.announced[-3:] == [1, 2, 3]
    assert [row["training_step"] for row in rows_of(config.run_dir)] == [1, 2, 3]
    summary = json.loads((config.run_dir / "learner_summary.json").read_text())
    assert summary["training_steps"] == 3
