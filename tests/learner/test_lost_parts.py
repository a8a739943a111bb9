"""A run folder that lost a part: its checkpoints, their markers, or its ledger. Never begun anew without a word."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from learner.checkpoint import choose_checkpoint
from learner.checkpoint_files import CheckpointError, find_checkpoints, writing
from learner.config import LearnConfig
from learner.ledger.schema import LedgerError
from longturn.errors import ConfigError
from tests.support.learner_run import LearnerThread, audited, rows_of, small_config, train_with_pool


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model_dir: Path, task_path: Path) -> LearnConfig:
    config = small_config(tmp_path_factory.mktemp("finished") / "run", model_dir, task_path)
    train_with_pool(config)
    return config


@pytest.fixture
def run(finished: LearnConfig, tmp_path: Path) -> LearnConfig:
    """A finished run of three batches, with a fourth to train."""
    folder = shutil.copytree(finished.run_dir, tmp_path / "run", ignore=shutil.ignore_patterns("*.sock"))
    batch = finished.batch.model_copy(update={"num_batches": 4})
    return finished.model_copy(update={"run_dir": folder, "batch": batch})


def write(folder: Path, step: int) -> Path:
    with writing(folder, step, batches_consumed=step) as partial:
        (partial / "weights").write_bytes(bytes(100))
    return find_checkpoints(folder)[-1].path


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_ledger_without_its_checkpoints_is_refused(run: LearnConfig, resume: str) -> None:
    shutil.rmtree(run.run_dir / "checkpoints")
    rows = len(rows_of(run.run_dir))
    with pytest.raises(LedgerError, match=r"holds 3 batches.*no checkpoint.*restore.*learner\.run_dir"):
        LearnerThread(run, resume=resume).join()
    assert len(rows_of(run.run_dir)) == rows


def test_checkpoints_without_their_ledger_are_refused_and_no_ledger_is_begun(run: LearnConfig) -> None:
    ledger = run.run_dir / "ledger.db"
    for file in run.run_dir.glob("ledger.db*"):
        file.unlink()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"there is no ledger at .*ledger\.db.*restore.*learner\.run_dir"):
            LearnerThread(run).join()
    assert not ledger.exists()


def test_batches_that_the_newest_checkpoint_lacks_are_told(run: LearnConfig, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(find_checkpoints(run.run_dir / "checkpoints")[-1].path)
    with caplog.at_level(logging.WARNING):
        assert train_with_pool(run)[0] == "COMPLETED"
    told = [vars(record) for record in caplog.records if "trained again" in record.getMessage()]
    assert [(record["checkpoint_batches"], record["ledger_batches"]) for record in told] == [(2, 3)]
    assert audited(run.run_dir).num_batches == 4


@pytest.mark.parametrize("damage", ["newest", "all"])
def test_a_checkpoint_that_lost_its_marker_is_damage(tmp_path: Path, damage: str) -> None:
    paths = [write(tmp_path, step) for step in (1, 2, 3)]
    for path in paths if damage == "all" else paths[-1:]:
        (path / "COMPLETE").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000. .*no completion marker.*on_damage=previous"):
        choose_checkpoint(tmp_path, "auto", on_damage="error")
    with pytest.raises(ConfigError, match="holds a run"):
        choose_checkpoint(tmp_path, "never", on_damage="error")
    with pytest.raises(CheckpointError, match=r"step-00000. .*no completion marker"):
        choose_checkpoint(tmp_path, str(paths[-1]), on_damage="error")


def test_by_rule_the_one_before_a_lost_marker_is_taken(tmp_path: Path) -> None:
    paths = [write(tmp_path, step) for step in (1, 2)]
    (paths[-1] / "COMPLETE").unlink()
    chosen = choose_checkpoint(tmp_path, "auto", on_damage="previous")
    assert chosen is not None
    assert chosen.path == paths[0]
    assert (tmp_path / "abandoned-000-step-000002").is_dir()


def test_what_an_interrupted_pruning_left_is_passed_over_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [write(tmp_path, step) for step in (1, 2)]
    (paths[0] / "COMPLETE").unlink()
    with caplog.at_level(logging.WARNING):
        chosen = choose_checkpoint(tmp_path, "auto", on_damage="error")
    assert chosen is not None
    assert chosen.path == paths[1]
    assert [vars(record)["path"] for record in caplog.records] == [paths[0]]
