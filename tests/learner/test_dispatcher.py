"""The dispatcher's thread against scripted pools over real ZMQ."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learner.assigner import Announced, Assigner, DispatchRules
from learner.dispatcher import Desk, Dispatcher, DispatcherStoppedError
from learner.ledger.records import BatchOutcome, TakenBatch
from learner.ledger.store import Ledger
from learner.ledger.tasks import TaskSchedule
from longturn.codec import float32s_to_bytes, trajectory_to_bytes, trajectory_to_proto
from longturn.dispatch import PROTOCOL_VERSION, DispatchRouter
from longturn.errors import ConfigError
from longturn.metrics import Metrics
from longturn.records import EndCause, EpisodeStatus, Task, Trajectory, Turn
from longturn.task_file import TaskEntry
from longturn.v1 import dispatch_pb2
from tests.support.scripted_pool import GiveUp, Member, ScriptedPool, made_up
from tests.support.waiting import wait_until

ENTRIES = [TaskEntry(task=Task(environment="scripted", task_id=f"task-{index}")) for index in range(3)]


def dispatcher_at(
    folder: Path,
    metrics: Metrics,
    *,
    heartbeat_s: float = 0.2,
    require_engine: bool = False,
    open_router: Callable[[str], DispatchRouter] = DispatchRouter,
) -> Dispatcher:
    rules = DispatchRules(
        run_seed=1,
        groups_per_step=2,
        max_policy_lag=0,
        num_batches=10,
        config_digest="digest",
        tokenizer_hash="tokens",
        vocabulary_size=48,
        max_row_tokens=100,
        heartbeat_s=heartbeat_s,
        pool_timeout_s=1.5,
        eval_temperature=0.0,
        require_engine=require_engine,
        play=dispatch_pb2.PlayRules(temperature=1.0, max_new_tokens=8, max_group_s=60.0),
    )

    def make_assigner(ledger: Ledger) -> Assigner:
        run_epoch = ledger.start_epoch(training_step=0, batches_consumed=0, config_digest="digest")
        with ledger.transaction():
            version = ledger.versions.allocate(0)
        assigner = Assigner(ledger, rules, metrics, run_epoch=run_epoch)
        assigner.announced = Announced(policy_version=version, training_step=0, engines=())
        return assigner

    return Dispatcher(
        open_ledger=lambda: Ledger(
            folder / "ledger.db",
            facts={},
            groups_per_step=2,
            group_size=3,
            max_slot_failures=2,
            task_of_slot=TaskSchedule(ENTRIES, run_seed=1, is_shuffled=False).entry,
        ),
        open_router=lambda: open_router(f"ipc://{folder}/dispatch.sock"),
        make_assigner=make_assigner,
        metrics=metrics,
    )


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def dispatcher(tmp_path: Path, metrics: Metrics) -> Iterator[Dispatcher]:
    dispatcher = dispatcher_at(tmp_path, metrics)
    yield dispatcher
    dispatcher.close()


def take(dispatcher: Dispatcher) -> TakenBatch:
    found: list[TakenBatch] = []

    def is_complete() -> bool:
        taken = dispatcher.call(lambda desk: desk.ledger.batches.take(0))
        found.extend([taken] if taken else [])
        return bool(found)

    wait_until(is_complete)
    return found[0]


def test_members_of_a_dead_pool_are_assigned_again_and_the_others_are_kept(dispatcher: Dispatcher) -> None:
    first = ScriptedPool(
        dispatcher.address, pool_id="first", script=lambda member: made_up(member) if member.member_index == 1 else None
    ).start()
    wait_until(lambda: len(first.acks) == 2)
    first.stop()
    with ScriptedPool(dispatcher.address, pool_id="second") as second:
        taken = take(dispatcher)
        missing = {item.group_id: (item.attempt, tuple(item.member_indices)) for item in second.assignments}
    assert missing == {"t000000.0": (1, (0, 2)), "t000001.0": (1, (0, 2))}
    assert [[member.attempt for member in group.members] for group in taken.groups] == [[1, 0, 1], [1, 0, 1]]


def test_a_restarted_pool_frees_the_groups_of_its_earlier_life_at_once(dispatcher: Dispatcher) -> None:
    first = ScriptedPool(dispatcher.address, pool_id="same", script=lambda member: None).start()
    wait_until(lambda: len(first.assignments) == 2)
    first.stop()
    with ScriptedPool(dispatcher.address, pool_id="same") as second:
        take(dispatcher)
        assert {item.attempt for item in second.assignments} == {1}


def test_an_assignment_that_is_not_listed_as_held_is_sent_again(dispatcher: Dispatcher, metrics: Metrics) -> None:
    pool = ScriptedPool(dispatcher.address, script=lambda member: None).start()
    wait_until(lambda: len(pool.assignments) == 2)
    pool.forget()
    wait_until(lambda: len(pool.assignments) >= 4)
    pool.stop()
    assert {item.attempt for item in pool.assignments} == {0}
    assert metrics.snapshot()["learner/group/sent_again"] >= 2


def test_a_pool_that_outlives_the_learner_keeps_its_groups(tmp_path: Path, metrics: Metrics) -> None:
    before = dispatcher_at(tmp_path, metrics)
    gate = threading.Event()
    pool = ScriptedPool(before.address, script=lambda member: made_up(member) if gate.is_set() else None).start()
    wait_until(lambda: len(pool.assignments) == 2)
    before.close()
    after = dispatcher_at(tmp_path, metrics)
    try:
        wait_until(lambda: "HELLO_FIRST" in pool.refusals)
        gate.set()
        pool.replay()
        taken = take(after)
        assert {member.attempt for group in taken.groups for member in group.members} == {0}
    finally:
        pool.stop()
        after.close()


def test_acks_arrive_while_the_training_thread_computes(dispatcher: Dispatcher) -> None:
    with ScriptedPool(dispatcher.address) as pool:
        matrix = torch.randn(400, 400)
        # The "training step": it would run for minutes, and ends when the acks are there.
        for _ in range(200_000):
            matrix = (matrix @ matrix).clamp(-1, 1)
            if len(pool.acks) == 6:
                break
        assert {ack.verdict for ack in pool.acks} == {dispatch_pb2.ACK_VERDICT_ACCEPTED}
        assert len(pool.acks) == 6


def poison(trajectory: Trajectory) -> bytes:
    message = trajectory_to_proto(trajectory)
    count = len(trajectory.turns[0].completion_ids)
    message.turns[0].behavior_logprobs = float32s_to_bytes([float("nan")] * count)
    return message.SerializeToString()


def test_a_nan_logprob_is_refused_and_its_group_fails(dispatcher: Dispatcher, metrics: Metrics) -> None:
    poisoned: list[str] = []

    def script(member: Member) -> Trajectory | bytes:
        trajectory = made_up(member)
        if member.assignment.group_id == "t000000.0" and member.member_index == 0:
            poisoned.append(member.assignment.group_id)
            return poison(trajectory)
        return trajectory

    with ScriptedPool(dispatcher.address, script=script) as pool:
        taken = take(dispatcher)
        refused = [ack for ack in pool.acks if ack.verdict == dispatch_pb2.ACK_VERDICT_REFUSED]
    assert poisoned
    assert "not finite" in refused[0].reason
    assert [group.group_id for group in taken.groups] == ["t000000.1", "t000001.0"]
    assert metrics.snapshot()["learner/trajectory/refused"] == 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: replace(t, tokenizer_hash="other"), "TOKENIZER_MISMATCH"),
        (lambda t: replace(t, sampling=replace(t.sampling, top_p=0.9)), "TRUNCATED_SAMPLING"),
        (lambda t: replace(t, sampling=replace(t.sampling, temperature=0.5)), "TEMPERATURE"),
        (lambda t: replace(t, sampling=None), "NO_SAMPLING"),
        (lambda t: replace(t, turns=()), "NO_TOKENS"),
        (lambda t: replace(t, status=EpisodeStatus.TRUNCATED, end_cause=EndCause.TIME_LIMIT), "NOT_A_MEMBER"),
        (lambda t: replace(t, status=EpisodeStatus.ABORTED, end_cause=EndCause.STALENESS), "NOT_A_MEMBER"),
        (lambda t: replace(t, turns=(_of_version(t, 77),)), "UNKNOWN_VERSION"),
        (lambda t: replace(t, turns=(replace(t.turns[0], prompt_ids=(48,)),)), "BAD_ROW"),
        (lambda t: replace(t, turns=(replace(t.turns[0], prompt_ids=(1,) * 97),)), "BAD_ROW"),
    ],
)
def test_what_the_loss_cannot_use_is_refused(
    dispatcher: Dispatcher, spoil: Callable[[Trajectory], Trajectory], reason: str
) -> None:
    with ScriptedPool(dispatcher.address, script=lambda member: spoil(made_up(member))) as pool:
        wait_until(lambda: bool(pool.acks))
        assert pool.acks[0].verdict == dispatch_pb2.ACK_VERDICT_REFUSED
        assert pool.acks[0].reason.startswith(reason)
        # Every try fails alike, so both slots close: nothing waits for ever.
        assert take(dispatcher).num_closed_slots == 2


def _of_version(trajectory: Trajectory, version: int) -> Turn:
    turn = trajectory.turns[0]
    return replace(turn, policy_spans=(replace(turn.policy_spans[0], policy_version=version),))


def test_a_late_attempt_is_superseded_without_harm(dispatcher: Dispatcher) -> None:
    kept: list[Trajectory] = []

    def hold_back(member: Member) -> Trajectory | None:
        kept.append(made_up(member))
        return None

    first = ScriptedPool(dispatcher.address, pool_id="slow", script=hold_back).start()
    wait_until(lambda: len(kept) == 6)
    first.stop()
    with ScriptedPool(dispatcher.address, pool_id="fast") as fast:
        taken = take(dispatcher)
        message = dispatch_pb2.SubmitTrajectory(trajectory=trajectory_to_bytes(kept[0]))
        message.identity.CopyFrom(trajectory_to_proto(kept[0]).identity)
        fast.extra.append(message)
        wait_until(lambda: any(ack.verdict == dispatch_pb2.ACK_VERDICT_SUPERSEDED for ack in fast.acks))
        assert take(dispatcher) == taken


def test_a_failed_group_is_played_again_in_its_slot(dispatcher: Dispatcher) -> None:
    def script(member: Member) -> Trajectory | GiveUp:
        is_first = member.assignment.group_id.endswith(".0")
        return GiveUp(reason="ENVIRONMENT_LOST") if is_first else made_up(member)

    with ScriptedPool(dispatcher.address, script=script):
        taken = take(dispatcher)
    assert [group.group_id for group in taken.groups] == ["t000000.1", "t000001.1"]
    assert [lost.reason for lost in taken.lost] == ["ENVIRONMENT_LOST"] * 2


def test_a_pool_whose_hellos_queued_up_is_admitted_once(
    dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    hello = dispatch_pb2.Hello(pool_id="scripted", protocol_version=PROTOCOL_VERSION)
    with caplog.at_level(logging.INFO), ScriptedPool(dispatcher.address) as pool:
        pool.extra.extend([hello] * 20)
        pool.extra.append(dispatch_pb2.Hello(pool_id="scripted", protocol_version="0"))
        wait_until(lambda: "PROTOCOL_MISMATCH" in pool.refusals)
    assert len([record for record in caplog.records if record.message == "pool admitted"]) == 1


def test_a_foreign_tokenizer_and_a_foreign_protocol_are_refused_by_name(dispatcher: Dispatcher) -> None:
    with ScriptedPool(dispatcher.address) as pool:
        pool.extra.append(dispatch_pb2.Hello(pool_id="x", protocol_version="1", tokenizer_hash="other"))
        pool.extra.append(dispatch_pb2.Hello(pool_id="x", protocol_version="0"))
        wait_until(lambda: len(pool.refusals) >= 2)
        assert {"TOKENIZER_MISMATCH", "PROTOCOL_MISMATCH"} <= set(pool.refusals)


def test_nothing_is_assigned_while_no_engine_is_announced(tmp_path: Path, metrics: Metrics) -> None:
    dispatcher = dispatcher_at(tmp_path, metrics, require_engine=True)
    endpoints = tuple(dispatch_pb2.EngineEndpoint(url=f"http://127.0.0.1:{port}") for port in (1, 2))

    def announce(engines: tuple[dispatch_pb2.EngineEndpoint, ...]) -> None:
        dispatcher.call(
            lambda desk: desk.assigner.announce(Announced(policy_version=0, training_step=0, engines=engines))
        )

    def rounds_until_heard(pool: ScriptedPool) -> None:
        # Every beat asks for groups, so an answer to a beat is an answer to a request.
        for _ in range(2):
            pool.heard.clear()
            assert pool.heard.wait(20)

    try:
        with ScriptedPool(dispatcher.address) as pool:
            rounds_until_heard(pool)
            assert pool.assignments == []
            announce(endpoints)
            take(dispatcher)
            num_assigned = len(pool.assignments)
            for endpoint in endpoints:
                dispatcher.call(lambda desk, url=endpoint.url: desk.assigner.withdraw(url))
            assert dispatcher.call(lambda desk: desk.assigner.lacks_engine)
            consume_first(dispatcher)
            rounds_until_heard(pool)
            assert len(pool.assignments) == num_assigned
            announce(endpoints)
            wait_until(lambda: len(pool.assignments) > num_assigned)
    finally:
        dispatcher.close()


def consume_first(dispatcher: Dispatcher) -> None:
    def run(desk: Desk) -> None:
        desk.ledger.batches.record(0, training_step=1, run_epoch=1, verdicts=[])
        desk.ledger.batches.consume(0, BatchOutcome.SKIPPED, "NO_SIGNAL")

    dispatcher.call(run)


def test_a_bug_in_a_round_reaches_the_training_thread(dispatcher: Dispatcher) -> None:
    with pytest.raises(DispatcherStoppedError, match="our bug"):
        dispatcher.call(_explode)
    with pytest.raises(DispatcherStoppedError, match="our bug"):
        dispatcher.call(lambda desk: desk.address)


class LateRouter(DispatchRouter):
    """Once `is_late`, its wakes come only when it is closed."""

    is_late = False

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._closed = threading.Event()

    def wake(self) -> None:
        assert not self.is_late or self._closed.wait(60)
        super().wake()

    def close(self, *, linger_s: float = 0.0) -> None:
        super().close(linger_s=linger_s)
        self._closed.set()


def test_a_wake_that_comes_after_the_end_leaves_the_error_of_the_end(tmp_path: Path, metrics: Metrics) -> None:
    routers: list[LateRouter] = []

    def open_router(address: str) -> DispatchRouter:
        routers.append(LateRouter(address))
        return routers[0]

    dispatcher = dispatcher_at(tmp_path, metrics, open_router=open_router)
    routers[0].is_late = True
    with pytest.raises(DispatcherStoppedError, match="our bug"):
        dispatcher.call(_explode)


def _explode(desk: object) -> None:
    raise RuntimeError("our bug")


def test_an_address_that_cannot_be_bound_is_a_config_error(tmp_path: Path, metrics: Metrics) -> None:
    with pytest.raises(ConfigError, match="shorter run folder"):
        dispatcher_at(tmp_path / ("x" * 120), metrics)
