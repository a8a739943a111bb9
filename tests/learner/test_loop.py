"""The whole learner with a scripted pool over real ZMQ and SQLite."""

from __future__ import annotations

import json
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from learner.batch import build_batch, tensors_of, tokens_of_groups
from learner.config import LearnConfig
from learner.ledger.records import StoredMember, TakenBatch, TakenGroup
from learner.ledger.tasks import TaskSchedule, sampling_seed
from learner.losses.entropy_history import EntropyHistory
from learner.losses.epo import epo_step
from learner.model import PolicyModel
from learner.options import batch_options, group_filter, history_options, update_options
from learner.update import apply_update, score_rows, select_groups, step_terms
from longturn.codec import task_to_proto, trajectory_to_bytes
from longturn.errors import ConfigError, LongturnError
from longturn.records import Trajectory
from longturn.task_file import read_tasks
from longturn.v1 import dispatch_pb2
from tests.support.full_disk import largest_file
from tests.support.learner_run import audited, rows_of, small_config, train_with_pool
from tests.support.sampling_policy import from_weights_dir, resample, sampling_script
from tests.support.scripted_pool import GiveUp, Member, made_up


def test_a_run_trains_all_batches_and_its_history_is_proven(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path)
    reason, pool = train_with_pool(config)
    assert reason == "COMPLETED"
    assert pool.end_reason == "COMPLETED"
    report = audited(config.run_dir)
    assert (report.num_batches, report.num_training_steps) == (3, 3)
    assert pool.announced[-3:] == [1, 2, 3]
    assert [row["training_step"] for row in rows_of(config.run_dir)] == [1, 2, 3]
    summary = json.loads((config.run_dir / "learner_summary.json").read_text())
    assert summary["training_steps"] == 3
    assert summary["trained_turns_mean"] >= 2


def test_a_finished_run_resumes_to_a_clean_exit(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 1})
    train_with_pool(config)
    assert train_with_pool(config)[0] == "COMPLETED"
    assert train_with_pool(config.model_copy(update={"batch": config.batch.model_copy(update={"num_batches": 1})}))[0]
    with pytest.raises(ConfigError, match="another run folder"):
        train_with_pool(config, resume="never")


def synchronous_loop(config: LearnConfig) -> tuple[list[float], PolicyModel]:
    """Play a batch, train on it, repeat: no ledger, no socket, no versions on disk."""
    model = PolicyModel.load(config.model.path)
    options, history = update_options(config), EntropyHistory(options=history_options(config))
    optimizer = torch.optim.AdamW(
        model.module.parameters(),
        lr=config.optimizer.learning_rate,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        weight_decay=0.0,
    )
    schedule = TaskSchedule(read_tasks(config.tasks.path), run_seed=config.seed, is_shuffled=True)
    losses: list[float] = []
    for number in range(config.batch.num_batches):
        taken = TakenBatch(
            batch=number,
            groups=tuple(
                play_group(config, schedule, model, number * config.batch.groups_per_step + index, number)
                for index in range(config.batch.groups_per_step)
            ),
            lost=(),
            num_closed_slots=0,
        )
        batch = build_batch(taken, batch_options(config, vocabulary_size=model.vocabulary_size))
        selection = select_groups(batch, group_filter(config), config.snr.score)
        pool, kept = tensors_of(batch), tensors_of(batch.restricted_to(selection.kept))
        proximal = score_rows(model, pool, temperature=1.0)
        terms = step_terms(kept, proximal.take(tokens_of_groups(pool.layout, selection.kept)), options, batch=number)
        assert options.loss.epo is not None
        step = epo_step(options.loss.epo, history, number, config.batch.num_batches)
        result = apply_update(model, optimizer, kept, terms, options, training_step=number, epo_step=step)
        history = history.appended(proximal.entropies_N.double().mean().item())
        losses.append(result.loss)
    return losses, model


def play_group(config: LearnConfig, schedule: TaskSchedule, model: PolicyModel, slot: int, version: int) -> TakenGroup:
    group_id, entry = f"t{slot:06d}.0", schedule.entry(slot)
    assignment = dispatch_pb2.GroupAssignment(
        group_id=group_id, task=task_to_proto(entry.task), seed=entry.seed, task_kind=entry.kind
    )
    members: list[StoredMember] = []
    for index in range(config.batch.group_size):
        member = Member(
            assignment=assignment,
            run_id="",
            tokenizer_hash=model.tokenizer_hash,
            member_index=index,
            sampling_seed=sampling_seed(config.seed, group_id, index),
            temperature=1.0,
            policy_version=version,
        )
        played = resample(made_up(member), model.module, member)  # type: ignore[arg-type]
        members.append(StoredMember(member_index=index, attempt=0, data=trajectory_to_bytes(played)))
    return TakenGroup(slot=slot, group_id=group_id, kind=entry.kind, duration_s=0.0, members=tuple(members))


def test_lag_zero_equals_a_plain_synchronous_loop_bit_for_bit(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path)
    losses, model = synchronous_loop(config)
    script = sampling_script(from_weights_dir(config.run_dir / "weights"))
    train_with_pool(config, script)
    rows = rows_of(config.run_dir)
    assert [row["learner/loss/total"] for row in rows] == losses
    assert [row["learner/lag/head"] for row in rows] == [0, 0, 0]
    final = load_file(config.run_dir / "checkpoints" / "step-000003" / "model.safetensors")
    expected = dict(model.module.named_parameters())
    assert final
    for name, tensor in final.items():
        assert torch.equal(tensor, expected[name]), name


def test_unchanged_weights_give_a_ratio_of_one(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, play={"temperature": 0.8})
    train_with_pool(config, sampling_script(from_weights_dir(config.run_dir / "weights")))
    for row in rows_of(config.run_dir):
        for name in ("weight_p01", "weight_p99", "weight_max"):
            assert row[f"learner/mismatch/{name}"] == pytest.approx(1.0, abs=1e-3)


def test_groups_run_at_most_the_allowed_lag_ahead(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 5, "max_policy_lag": 2})
    train_with_pool(config)
    lags = [row["learner/lag/head"] for row in rows_of(config.run_dir)]
    assert all(isinstance(lag, int) and lag <= 2 for lag in lags)
    assert max(lags) == 2  # type: ignore[type-var]
    audited(config.run_dir)


def fails(member: Member) -> bool:
    """A fifth of all groups, by name."""
    return zlib.crc32(member.assignment.group_id.encode()) % 5 == 0


def fifth_fails(member: Member) -> Trajectory | GiveUp:
    return GiveUp(reason="MEMBER_RETRIES") if fails(member) else made_up(member)


def test_failing_groups_never_stall_a_run(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 6})
    assert train_with_pool(config, fifth_fails)[0] == "COMPLETED"
    report = audited(config.run_dir, num_slots_closed=None)
    assert report.num_groups_failed > 0
    complete = report.num_groups_trained + report.num_groups_filtered + report.num_groups_skipped
    assert complete + report.num_slots_closed == 12


@pytest.mark.parametrize("with_failures", [False, True])
def test_equal_rewards_end_by_the_named_rule(
    tmp_path: Path, model_dir: Path, task_path: Path, *, with_failures: bool
) -> None:
    def script(member: Member) -> Trajectory | GiveUp:
        played = made_up(member, success=True)
        return GiveUp(reason="MEMBER_RETRIES") if with_failures and fails(member) else played

    config = small_config(
        tmp_path / "run", model_dir, task_path, batch={"num_batches": 9}, stop={"max_skipped_in_a_row": 4}
    )
    reason, pool = train_with_pool(config, script)
    assert reason == pool.end_reason == "NO_SIGNAL"
    report = audited(config.run_dir, num_slots_closed=None)
    assert (report.num_batches, report.num_training_steps) == (4, 0)
    assert not any(pool.announced)


def test_groups_that_all_fail_close_their_slots_and_skip_the_batch(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, stop={"max_skipped_in_a_row": 2})
    reason, _ = train_with_pool(config, lambda member: GiveUp(reason="ENVIRONMENT_LOST"))
    assert reason == "NO_GROUPS"
    assert [row["outcome"] for row in rows_of(config.run_dir)] == ["NO_GROUPS", "NO_GROUPS"]
    audited(config.run_dir, num_slots_closed=4)


def test_weights_that_blow_up_are_skipped_and_never_published_again(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(
        tmp_path / "run",
        model_dir,
        task_path,
        batch={"num_batches": 4},
        optimizer={"learning_rate": 1e30},
        stop={"max_skipped_in_a_row": 2},
    )
    reason, pool = train_with_pool(config)
    outcomes = [row["outcome"] for row in rows_of(config.run_dir)]
    assert reason == "NON_FINITE"
    assert outcomes == ["TRAINED", "NON_FINITE", "NON_FINITE"]
    assert max(pool.announced) == 1
    audited(config.run_dir)


def evaluations_of(run_dir: Path) -> list[dict[str, object]]:
    lines = (run_dir / "metrics" / "learner.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "learner/eval/episodes" in row]


def test_evaluation_groups_are_counted_and_not_trained(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(
        tmp_path / "run",
        model_dir,
        task_path,
        batch={"num_batches": 2},
        evaluation={"every": 2, "path": task_path, "num_tasks": 3, "temperature": 0.0},
    )
    train_with_pool(config)
    found = evaluations_of(config.run_dir)
    assert [(row["policy_version"], row["learner/eval/episodes"]) for row in found] == [(0, 3), (2, 3)]
    assert audited(config.run_dir).num_trajectories_trained <= 16


def test_a_panel_is_labelled_with_the_versions_that_played_it_even_after_a_restart(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    disk = ExitStack()

    def holds_panel_back_until_the_disk_is_full(member: Member) -> Trajectory | None:
        if member.policy_version == 1:
            disk.enter_context(largest_file(20_000))
        return None if member.assignment.group_id.startswith("e000000.0001") else made_up(member)

    evaluation = {"every": 3, "path": task_path, "num_tasks": 2}
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 2}, evaluation=evaluation)
    with disk, pytest.raises(LongturnError, match="cannot be written"):
        train_with_pool(config, holds_panel_back_until_the_disk_is_full)
    assert train_with_pool(config)[0] == "COMPLETED"
    (row,) = evaluations_of(config.run_dir)
    assert (row["learner/eval/episodes"], row["learner/eval/closed_slots"]) == (2, 0)
    assert row["learner/eval/min_policy_version"] == 0
    # The member that was held back was played after the restart, by a version that was given out there.
    assert row["policy_version"] == row["learner/eval/max_policy_version"] >= 2  # type: ignore[operator]


def test_the_control_switch_changes_weights_but_not_groups(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    real = small_config(tmp_path / "real", model_dir, task_path, batch={"num_batches": 1})
    control = small_config(
        tmp_path / "control", model_dir, task_path, batch={"num_batches": 1}, control={"permute_advantages": True}
    )
    for config in (real, control):
        train_with_pool(config)
    first, second = rows_of(real.run_dir)[0], rows_of(control.run_dir)[0]
    assert first["learner/group/kept"] == second["learner/group/kept"]
    assert first["learner/gradient/norm"] != second["learner/gradient/norm"]


def test_ignoring_staleness_must_be_spelled_out_and_is_logged(
    tmp_path: Path, model_dir: Path, task_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="accept_bias"):
        small_config(tmp_path, model_dir, task_path, batch={"max_policy_lag": 1}, off_policy={"mode": "none"})
    changes = {"batch": {"max_policy_lag": 1, "num_batches": 1}, "off_policy": {"mode": "none", "accept_bias": True}}
    train_with_pool(small_config(tmp_path / "run", model_dir, task_path, **changes))
    assert [record.getMessage() for record in caplog.records if "accept_bias" in record.getMessage()] == [
        "off_policy.accept_bias: updates may be biased by stale data"
    ]


def test_one_broken_batch_among_filtered_ones_names_the_end(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    def script(member: Member) -> Trajectory | GiveUp:
        is_of_batch_one = member.assignment.group_id[1:7] in ("000002", "000003")
        return GiveUp(reason="ENVIRONMENT_LOST") if is_of_batch_one else made_up(member, success=True)

    changes = {"batch": {"num_batches": 9}, "stop": {"max_skipped_in_a_row": 3}}
    config = small_config(tmp_path / "run", model_dir, task_path, **changes)
    assert train_with_pool(config, script)[0] == "NO_GROUPS"
    assert [row["outcome"] for row in rows_of(config.run_dir)] == ["NO_SIGNAL", "NO_GROUPS", "NO_SIGNAL"]


def test_a_second_learner_in_the_same_folder_is_refused(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    from learner.session import learn

    config = small_config(tmp_path / "run", model_dir, task_path)

    def script(member: Member) -> Trajectory:
        if member.assignment.group_id == "t000000.0" and member.member_index == 0:
            with pytest.raises(ConfigError, match="another learner runs"):
                learn(config, resume="auto", ready_file=None)
        return made_up(member)

    train_with_pool(config, script)
