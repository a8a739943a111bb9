"""Slots, attempts, batches and versions in a real SQLite file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from learner.ledger.admission import slots_assignable_below
from learner.ledger.records import Assignment, BatchOutcome, GroupVerdict, Receipt, Submission
from learner.ledger.schema import LedgerError
from learner.ledger.store import Ledger
from learner.ledger.tasks import TaskSchedule, sampling_seed
from longturn.codec import trajectory_to_bytes
from longturn.errors import ConfigError
from longturn.records import Purpose, Task, Trajectory
from longturn.task_file import TaskEntry
from longturn.v1 import dispatch_pb2, environment_pb2
from tests.support.scripted_pool import Member, made_up

GOLDEN = Path(__file__).parents[1] / "golden" / "admission.json"
ENTRIES = tuple(TaskEntry(task=Task(environment="scripted", task_id=f"task-{index}"), seed=index) for index in range(5))


def open_ledger(
    path: Path,
    *,
    max_slot_failures: int = 2,
    facts: dict[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Ledger:
    schedule = TaskSchedule(ENTRIES, run_seed=1, is_shuffled=True)
    return Ledger(
        path,
        facts=facts or {"batch.groups_per_step": "2", "batch.group_size": "2"},
        groups_per_step=2,
        group_size=2,
        max_slot_failures=max_slot_failures,
        task_of_slot=schedule.entry,
        clock=clock,
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.db") as ledger:
        ledger.start_epoch(training_step=0, batches_consumed=0, config_digest="")
        with ledger.transaction():
            ledger.versions.allocate(0)
        yield ledger


def assign(ledger: Ledger, holder: bytes = b"pool", *, below: int = 100, step: int = 0) -> Assignment | None:
    with ledger.transaction():
        return ledger.groups.next_assignment(holder, slots_below=below, training_step=step, max_members=None)


def must_assign(ledger: Ledger, holder: bytes = b"pool", *, below: int = 100, step: int = 0) -> Assignment:
    assignment = assign(ledger, holder, below=below, step=step)
    assert assignment is not None
    return assignment


def trajectory(ledger: Ledger, assignment: Assignment, member_index: int, *, version: int = 0) -> Trajectory:
    return made_up(
        Member(
            assignment=dispatch_pb2.GroupAssignment(
                group_id=assignment.group_id,
                attempt=assignment.attempt,
                task=environment_pb2.Task(environment="scripted", task_id=assignment.entry.task.task_id),
            ),
            run_id=ledger.run_id,
            tokenizer_hash="",
            member_index=member_index,
            sampling_seed=7,
            temperature=1.0,
            policy_version=version,
        )
    )


def submit(ledger: Ledger, assignment: Assignment, member_index: int, *, version: int = 0) -> Receipt:
    played = trajectory(ledger, assignment, member_index, version=version)
    with ledger.transaction():
        return ledger.groups.submit(Submission(trajectory=played, data=trajectory_to_bytes(played)))[0]


def complete(ledger: Ledger, assignment: Assignment) -> None:
    for member_index in assignment.member_indices:
        assert submit(ledger, assignment, member_index) is Receipt.ACCEPTED


def consume(ledger: Ledger, batch: int, outcome: BatchOutcome = BatchOutcome.TRAINED) -> None:
    with ledger.transaction():
        taken = ledger.batches.take(batch)
        assert taken is not None
        verdicts = [GroupVerdict(group_id=group.group_id, verdict="kept", score=1.0) for group in taken.groups]
        ledger.batches.record(batch, training_step=batch + 1, run_epoch=1, verdicts=verdicts)
        ledger.batches.consume(batch, outcome, "" if outcome is BatchOutcome.TRAINED else "NO_SIGNAL")


def test_the_admission_rule_matches_its_golden_numbers() -> None:
    for row in json.loads(GOLDEN.read_text())["rows"]:
        below = slots_assignable_below(
            groups_per_step=row["groups_per_step"],
            max_policy_lag=row["max_policy_lag"],
            batches_consumed=row["batches_consumed"],
        )
        assert below == row["slots_assignable_below"]
        assert below - 1 == row["last_assignable_slot"]


def test_slots_are_handed_out_in_order_up_to_the_limit(ledger: Ledger) -> None:
    issued = [assign(ledger, below=3) for _ in range(4)]
    assert [group.group_id if group else None for group in issued] == ["t000000.0", "t000001.0", "t000002.0", None]


def test_a_batch_is_taken_in_slot_order_once_all_its_slots_ended(ledger: Ledger) -> None:
    first, second = must_assign(ledger), must_assign(ledger)
    complete(ledger, second)
    assert ledger.batches.take(0) is None
    complete(ledger, first)
    taken = ledger.batches.take(0)
    assert taken is not None
    assert [group.slot for group in taken.groups] == [0, 1]
    assert [member.member_index for member in taken.groups[0].members] == [0, 1]


def test_a_repeat_is_a_duplicate_and_changes_nothing(ledger: Ledger) -> None:
    group = must_assign(ledger)
    assert submit(ledger, group, 0) is Receipt.ACCEPTED
    assert submit(ledger, group, 0) is Receipt.DUPLICATE


def test_an_older_attempt_is_superseded_and_its_stored_members_are_kept(ledger: Ledger) -> None:
    first = must_assign(ledger, b"one")
    assert submit(ledger, first, 1) is Receipt.ACCEPTED
    with ledger.transaction():
        assert ledger.groups.release(b"one") == 1
    second = must_assign(ledger, b"two")
    assert (second.group_id, second.attempt, second.member_indices) == (first.group_id, 1, (0,))
    assert submit(ledger, first, 0) is Receipt.SUPERSEDED
    assert submit(ledger, first, 1) is Receipt.DUPLICATE
    assert submit(ledger, second, 0) is Receipt.ACCEPTED
    assert submit(ledger, first, 0) is Receipt.SUPERSEDED


def test_what_was_never_assigned_is_refused(ledger: Ledger) -> None:
    group = must_assign(ledger)
    assert submit(ledger, group, 2) is Receipt.REFUSED
    assert submit(ledger, replace(group, group_id="t000009.0"), 0) is Receipt.REFUSED
    assert submit(ledger, replace(group, attempt=1), 0) is Receipt.REFUSED


def test_members_that_started_differently_are_no_group(ledger: Ledger) -> None:
    group = must_assign(ledger)
    played = trajectory(ledger, group, 0)
    assert submit(ledger, group, 1) is Receipt.ACCEPTED
    other = replace(played, initial_observation="somewhere else")
    with ledger.transaction():
        receipt, reason = ledger.groups.submit(Submission(trajectory=other, data=trajectory_to_bytes(other)))
    assert (receipt, reason) == (Receipt.REFUSED, "START_MISMATCH")


def test_a_failed_group_returns_its_slot_until_the_slot_closes(ledger: Ledger) -> None:
    first = must_assign(ledger, below=1)
    with ledger.transaction():
        assert ledger.groups.fail(first.group_id, first.attempt, "MEMBER_RETRIES", "") is True
        assert ledger.groups.fail(first.group_id, first.attempt, "MEMBER_RETRIES", "") is False
    second = must_assign(ledger, below=1)
    assert second.group_id == "t000000.1"
    assert second.entry == first.entry
    with ledger.transaction():
        ledger.groups.fail(second.group_id, second.attempt, "ENVIRONMENT_LOST", "")
    assert assign(ledger, below=1) is None
    complete(ledger, must_assign(ledger))
    taken = ledger.batches.take(0)
    assert taken is not None
    assert [group.slot for group in taken.groups] == [1]
    assert taken.num_closed_slots == 1
    assert [lost.reason for lost in taken.lost] == ["MEMBER_RETRIES", "ENVIRONMENT_LOST"]


def test_a_member_is_retried_within_one_training_step_only(ledger: Ledger) -> None:
    near, far = must_assign(ledger, b"near"), must_assign(ledger, b"far")
    for group in (near, far):
        assert submit(ledger, group, 0) is Receipt.ACCEPTED
    with ledger.transaction():
        ledger.versions.allocate(1)
        ledger.groups.release(b"near")
    again = must_assign(ledger, b"new", step=1)
    assert (again.group_id, again.max_policy_version) == (near.group_id, 1)
    with ledger.transaction():
        ledger.groups.release(b"far")
    assert must_assign(ledger, b"new", step=2).group_id == "t000001.1"


def restart(path: Path, *, batches_consumed: int) -> Ledger:
    """Open again at a checkpoint whose training step is the number of its batches."""
    ledger = open_ledger(path)
    ledger.start_epoch(training_step=batches_consumed, batches_consumed=batches_consumed, config_digest="")
    with ledger.transaction():
        ledger.versions.allocate(batches_consumed)
    return ledger


def test_after_a_restart_later_slots_wait_for_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with restart(path, batches_consumed=0) as ledger:
        for _ in range(4):
            complete(ledger, must_assign(ledger))
        consume(ledger, 0)
        consume(ledger, 1)
        with ledger.transaction():
            ledger.versions.allocate(1)
            ledger.versions.allocate(2)
        unheld, failed = must_assign(ledger, step=2), must_assign(ledger, step=2)
        assert submit(ledger, unheld, 0, version=2) is Receipt.ACCEPTED
        with ledger.transaction():
            ledger.groups.fail(failed.group_id, 0, "ENVIRONMENT_LOST", "")
            ledger.groups.release(b"pool")
    # The checkpoint had consumed nothing: batches 0 and 1 are complete, and batch 2 is not yet admitted.
    with restart(path, batches_consumed=0) as ledger:
        assert assign(ledger, below=4) is None
        assert ledger.batches.take(1) is not None
        consume(ledger, 0)
        with ledger.transaction():
            ledger.versions.allocate(1)
        again = must_assign(ledger, below=6, step=1)
        # Versions 4 (step 1), 5 (step 2) and 6 (step 3) are within a step of the stored member's step 2.
        assert (again.group_id, again.member_indices, again.max_policy_version) == (unheld.group_id, (1,), 6)
        assert must_assign(ledger, below=6, step=1).group_id == "t000005.1"


def test_a_member_of_weights_that_are_lost_for_long_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with restart(path, batches_consumed=0) as ledger:
        group = must_assign(ledger)
        with ledger.transaction():
            ledger.versions.allocate(2)
        assert submit(ledger, group, 0, version=1) is Receipt.ACCEPTED
        with ledger.transaction():
            ledger.groups.release(b"pool")
    with restart(path, batches_consumed=0) as ledger:
        assert must_assign(ledger, step=0).group_id == "t000000.1"


def test_a_pause_between_two_starts_makes_no_group_older(tmp_path: Path) -> None:
    now_s = [1000.0]
    path = tmp_path / "ledger.db"
    with open_ledger(path, clock=lambda: now_s[0]) as ledger:
        ledger.start_epoch(training_step=0, batches_consumed=0, config_digest="")
        group = must_assign(ledger)
    now_s[0] += 100_000.0
    with open_ledger(path, clock=lambda: now_s[0]) as ledger:
        ledger.start_epoch(training_step=0, batches_consumed=0, config_digest="")
        now_s[0] += 50.0
        assert ledger.groups.open_groups(older_than_s=60.0) == []
        now_s[0] += 50.0
        assert [late.group_id for late in ledger.groups.open_groups(older_than_s=60.0)] == [group.group_id]


def test_a_retry_at_the_first_members_version_may_still_meet_the_next_one(ledger: Ledger) -> None:
    group = must_assign(ledger, b"one")
    assert submit(ledger, group, 0) is Receipt.ACCEPTED
    with ledger.transaction():
        ledger.groups.release(b"one")
    assert must_assign(ledger, b"two").max_policy_version == 1


def test_a_restart_reopens_batches_after_the_checkpoint_with_the_same_groups(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(path) as ledger:
        ledger.start_epoch(training_step=0, batches_consumed=0, config_digest="")
        with ledger.transaction():
            ledger.versions.allocate(0)
        for _ in range(4):
            complete(ledger, must_assign(ledger))
        consume(ledger, 0)
        consume(ledger, 1)
        before = ledger.batches.take(1)
        with ledger.transaction():
            assert ledger.versions.allocate(2) == 1
    with open_ledger(path) as ledger:
        assert ledger.start_epoch(training_step=1, batches_consumed=1, config_digest="") == 2
        assert ledger.batches.num_consumed == 1
        assert ledger.batches.take(1) == before
        with ledger.transaction():
            assert ledger.versions.allocate(1) == 2
        assert ledger.versions.training_steps() == {0: 0, 1: 2, 2: 1}
        consume(ledger, 1)


def test_a_checkpoint_ahead_of_the_ledger_is_refused(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.db") as ledger, pytest.raises(LedgerError, match="different runs"):
        ledger.start_epoch(training_step=3, batches_consumed=3, config_digest="")


def test_a_setting_that_fixes_the_slots_cannot_change(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.db", facts={"seed": "1"}):
        pass
    with pytest.raises(ConfigError, match=r"learner\.seed is 2"):
        open_ledger(tmp_path / "ledger.db", facts={"seed": "2"})


def test_a_file_that_is_no_ledger_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(LedgerError, match=r"ledger\.db"):
        open_ledger(path)


def test_an_exception_rolls_the_round_back(ledger: Ledger) -> None:
    def explode() -> None:
        with ledger.transaction():
            ledger.groups.next_assignment(b"pool", slots_below=9, training_step=0, max_members=None)
            raise RuntimeError("our bug")

    with pytest.raises(RuntimeError, match="our bug"):
        explode()
    assert must_assign(ledger).group_id == "t000000.0"


def test_batches_are_consumed_in_order(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError, match="next one is 0"), ledger.transaction():
        ledger.batches.consume(1, BatchOutcome.TRAINED)


def test_evaluation_groups_go_first_and_are_summed_up_when_all_ended(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.groups.open_evaluation(0, ENTRIES[:2], group_size=1)
    groups = [must_assign(ledger, below=1) for _ in range(3)]
    assert [group.purpose for group in groups] == [Purpose.EVAL, Purpose.EVAL, Purpose.TRAIN]
    complete(ledger, groups[0])
    assert ledger.groups.evaluation(0) is None
    complete(ledger, groups[1])
    evaluation = ledger.groups.evaluation(0)
    assert evaluation is not None
    assert len(evaluation.trajectories) == 2
    assert ledger.groups.is_evaluated(0)


def test_a_panel_that_is_half_played_outlives_a_restart_unless_its_weights_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with restart(path, batches_consumed=0) as ledger:
        with ledger.transaction():
            ledger.groups.open_evaluation(0, ENTRIES[:2], group_size=1)
        complete(ledger, must_assign(ledger, below=0))
        with ledger.transaction():
            ledger.versions.allocate(1)
            ledger.groups.open_evaluation(1, ENTRIES[:1], group_size=1)
    with restart(path, batches_consumed=0) as ledger:
        assert ledger.groups.pending_evaluations() == [0]
        assert (ledger.groups.is_evaluated(0), ledger.groups.is_evaluated(1)) == (True, False)
        complete(ledger, must_assign(ledger, below=0))
        evaluation = ledger.groups.evaluation(0)
        assert evaluation is not None
        assert (len(evaluation.trajectories), evaluation.num_closed_slots) == (2, 0)
    with restart(path, batches_consumed=0) as ledger:
        assert ledger.groups.pending_evaluations() == [0]
        with ledger.transaction():
            ledger.groups.mark_reported(0)
        assert ledger.groups.pending_evaluations() == []
        assert ledger.groups.is_evaluated(0)


def test_tasks_and_seeds_are_pure_functions_of_the_run() -> None:
    schedule = TaskSchedule(ENTRIES, run_seed=1, is_shuffled=True)
    again = TaskSchedule(ENTRIES, run_seed=1, is_shuffled=True)
    slots = range(15)
    assert [schedule.entry(slot) for slot in reversed(slots)] == [again.entry(slot) for slot in slots][::-1]
    assert sorted(schedule.entry(slot).seed for slot in range(5, 10)) == [0, 1, 2, 3, 4]
    assert [TaskSchedule(ENTRIES, run_seed=1, is_shuffled=False).entry(slot).seed for slot in range(7)] == [
        *range(5), 0, 1,
    ]  # fmt: skip
    seeds = {sampling_seed(1, "t000000.0", member) for member in range(64)}
    assert len(seeds) == 64
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_releasing_and_resending_name_only_living_groups(ledger: Ledger) -> None:
    group = must_assign(ledger, b"one")
    assert [(held.group_id, held.attempt) for held in ledger.groups.open_groups(b"one")] == [(group.group_id, 0)]
    complete(ledger, group)
    assert ledger.groups.open_groups(b"one") == []
