"""Dynamic sampling: groups without signal are made up for, counted, and trained once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from learner.checkpoint_files import find_checkpoints
from learner.config import LearnConfig
from learner.filters.has_variance import HasVariance
from learner.filters.selection import Verdict
from learner.ledger.schema import open_ledger_file
from learner.ledger.tasks import TaskSchedule
from longturn.errors import ConfigError
from longturn.records import Task, Trajectory
from longturn.task_file import TaskEntry
from tests.support.learner_run import audited, rows_of, small_config, train_with_pool
from tests.support.scripted_pool import Member, made_up

REFILLED: dict[str, dict[str, object]] = {
    "batch": {"groups_per_step": 2, "num_batches": 2, "max_refill": 3},
    "snr": {"filter": "has_variance"},
}


def mixed(member: Member) -> Trajectory:
    """Half of a group succeeds, but all of the first batch's first group and of its first refill."""
    is_alike = member.assignment.group_id.startswith(("t000000.", "r000000.0000."))
    return made_up(member, success=True if is_alike else member.member_index % 2 == 0)


def all_alike(member: Member) -> Trajectory:
    return made_up(member, success=False)


def final_weights(config: LearnConfig) -> dict[str, torch.Tensor]:
    return load_file(find_checkpoints(config.run_dir / "checkpoints")[-1].path / "model.safetensors")


def test_groups_without_signal_are_made_up_for_until_the_batch_is_full(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, **REFILLED)
    reason, pool = train_with_pool(config, mixed)
    assert reason == "COMPLETED"
    rows = rows_of(config.run_dir)
    names = ("learner/group/generated", "learner/group/refills", "learner/group/kept")
    assert [[row[name] for name in names] for row in rows] == [[4, 2, 2], [2, 0, 2]]
    asked = {assignment.group_id: assignment.task.task_id for assignment in pool.assignments}
    assert {group_id for group_id in asked if group_id.startswith("r")} == {"r000000.0000.0", "r000000.0001.0"}
    assert audited(config.run_dir).num_groups_trained == 4
    # The same batch, taken again after a restart, asks for nothing more and gives the same weights.
    expected = final_weights(config)
    first = next(found for found in find_checkpoints(config.run_dir / "checkpoints") if not found.batches_consumed)
    _, again = train_with_pool(config, mixed, resume=str(first.path))
    assert again.assignments == []
    assert all(torch.equal(tensor, expected[name]) for name, tensor in final_weights(config).items())
    audited(config.run_dir)


def test_a_refill_ends_at_its_limit_and_the_batch_is_skipped_visibly(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, **REFILLED, stop={"max_skipped_in_a_row": 1})
    assert train_with_pool(config, all_alike)[0] == "NO_SIGNAL"
    (row,) = rows_of(config.run_dir)
    assert (row["outcome"], row["learner/group/generated"], row["learner/group/refills"]) == ("NO_SIGNAL", 5, 3)
    assert audited(config.run_dir).num_groups_skipped == 5


def test_what_is_played_in_a_refill_follows_from_its_place() -> None:
    entries = [TaskEntry(task=Task(environment="e", task_id=f"t{index}"), seed=index, kind="") for index in range(9)]
    schedule = TaskSchedule(entries, run_seed=3, is_shuffled=True)
    drawn = [schedule.refill(batch, index).task.task_id for batch in range(4) for index in range(4)]
    assert drawn == [schedule.refill(batch, index).task.task_id for batch in range(4) for index in range(4)]
    assert len(set(drawn)) > 4


def test_rounding_is_no_signal() -> None:
    selection = HasVariance(success_reward=10.0).select([1e-7, 25.0, 0.0])
    assert selection.verdicts == (Verdict.ZERO_VARIANCE, Verdict.KEPT, Verdict.ZERO_VARIANCE)


def test_a_ledger_of_before_refills_is_read_and_refuses_them(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 1})
    connection = open_ledger_file(config.run_dir / "ledger.db")
    connection.execute("UPDATE meta SET value = '1' WHERE name = 'schema_version'")
    connection.close()
    assert train_with_pool(config)[0] == "COMPLETED"
    wanted = small_config(tmp_path / "run", model_dir, task_path, **REFILLED)
    with pytest.raises(ConfigError, match=r"learner\.batch\.max_refill"):
        train_with_pool(wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": {"max_refill": 1}, "snr": {"filter": "none"}},
        {"batch": {"max_refill": 1}, "snr": {"filter": "streaming"}},
        {"batch": {"max_refill": 1, "group_size": 1}, "snr": {"filter": "none"}},
    ],
)
def test_a_refill_needs_groups_that_a_filter_of_whole_batches_judges(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"batch\.max_refill stands in for groups without variance"):
        LearnConfig.model_validate(changes)
