"""`longturn diagnose` on a run that is over."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from learner.diagnose import diagnose
from longturn.cli import build_app
from tests.support.learner_run import rows_of, small_config, train_with_pool

SEED = 4
"""Of which no batch plays two tasks that begin with the same made-up prompt."""


def files_of(run_dir: Path) -> dict[Path, int]:
    """Files and their sizes, without those that SQLite keeps beside a ledger while somebody reads it."""
    files = (path for path in run_dir.rglob("*") if path.is_file() and not path.name.startswith("ledger.db-"))
    return {path: path.stat().st_size for path in files}


def test_a_finished_run_is_diagnosed_from_its_ledger_and_checkpoints(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, seed=SEED, diagnostics={"every": 1, "num_samples": 8})
    train_with_pool(config)
    before = files_of(config.run_dir)
    found, online = diagnose(config, config.run_dir, num_samples=8), rows_of(config.run_dir)
    assert files_of(config.run_dir) == before
    assert [row["batch"] for row in found["batches"]] == [0, 1, 2]
    for row, seen in zip(found["batches"], online, strict=True):
        assert row["learner/episode/success_mean"] == seen["learner/episode/success_mean"]
        # Scripted completions carry logprobs between -5 and -3.
        assert 3.0 < float(str(row["learner/entropy/token_mean"])) < 5.0
        assert row["learner/cascade/explore_alarm"] == 0
    # The checkpoint at the start has trained nothing; the others score the batch that made them.
    assert [row["batch"] for row in found["checkpoints"]] == [0, 1, 2]
    for row, seen in zip(found["checkpoints"], online, strict=True):
        assert row["learner/mi/regime"] == seen["learner/mi/regime"]
        for name in ("first_turn_token", "any_turn_seq", "first_turn_retrieval", "first_turn_h_z_given_x"):
            assert row[f"learner/mi/{name}"] == pytest.approx(seen[f"learner/mi/{name}"], abs=1e-5)
        assert math.isfinite(float(str(row["learner/entropy/late_third"])))


def test_the_command_writes_its_findings_beside_the_run(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, seed=SEED, batch={"num_batches": 1})
    train_with_pool(config)
    done = CliRunner().invoke(build_app(), ["diagnose", str(config.run_dir), "--num-samples", "8"])
    assert done.exit_code == 0, done.output
    written = json.loads((config.run_dir / "diagnosis.json").read_text(encoding="utf-8"))
    assert set(written) == {"batches", "checkpoints"}
    assert written["checkpoints"][0]["learner/mi/first_turn_num_prompts"] == 2
