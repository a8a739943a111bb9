"""Slow tasks enter the batches as often as they are offered, on the real ledger and assigner in a clock of the test."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from learner.assigner import Announced, Assigner, DispatchRules
from learner.ledger.records import BatchOutcome, GroupVerdict
from learner.ledger.store import Ledger
from learner.ledger.tasks import TaskSchedule
from learner.length_bias import LengthBiasMeter
from longturn.codec import identity_to_proto, trajectory_to_bytes
from longturn.dispatch import PROTOCOL_VERSION, Body, Received
from longturn.metrics import Metrics
from longturn.records import Task
from longturn.task_file import TaskEntry
from longturn.v1 import dispatch_pb2
from tests.support.scripted_pool import Member, made_up

PEER = b"pool/1"
GROUPS_PER_STEP = 8
GROUP_SIZE = 2
NUM_BATCHES = 40
SLOWNESS = 8.0
ENTRIES = [
    TaskEntry(task=Task(environment="scripted", task_id=f"{kind}-{index}"), kind=kind)
    for index in range(20)
    for kind in ("fast", "slow")
]


class Play:
    """A pool and a learner between which time passes only when nothing else can happen."""

    def __init__(self, folder: Path, *, max_policy_lag: int, num_actors: int) -> None:
        self.now_s = 1000.0
        self._draw = random.Random(5)
        self._order = count()
        self._ends: list[tuple[float, int, dispatch_pb2.GroupAssignment]] = []
        self._num_free = num_actors
        self.meter = LengthBiasMeter()
        self.lost: Counter[str] = Counter()
        self.lags: list[int] = []
        self.ledger = Ledger(
            folder / "ledger.db",
            facts={},
            groups_per_step=GROUPS_PER_STEP,
            group_size=GROUP_SIZE,
            max_slot_failures=3,
            task_of_slot=TaskSchedule(ENTRIES, run_seed=1, is_shuffled=True).entry,
            clock=lambda: self.now_s,
        )
        rules = DispatchRules(
            run_seed=1,
            groups_per_step=GROUPS_PER_STEP,
            max_policy_lag=max_policy_lag,
            num_batches=NUM_BATCHES,
            config_digest="digest",
            tokenizer_hash="",
            vocabulary_size=48,
            max_row_tokens=100,
            heartbeat_s=1e6,
            pool_timeout_s=1e9,
            eval_temperature=None,
            require_engine=False,
            play=dispatch_pb2.PlayRules(temperature=1.0, max_new_tokens=8, max_group_s=1e6),
        )
        epoch = self.ledger.start_epoch(training_step=0, batches_consumed=0, config_digest="digest")
        self.assigner = Assigner(self.ledger, rules, Metrics(), run_epoch=epoch, clock=lambda: self.now_s)
        with self.ledger.transaction():
            version = self.ledger.versions.allocate(0)
        self.assigner.announced = Announced(policy_version=version, training_step=0, engines=())
        self._say(dispatch_pb2.Hello(pool_id="pool", protocol_version=PROTOCOL_VERSION, num_actors=num_actors))

    def run(self) -> None:
        """Until the last batch is consumed."""
        batch = 0
        while batch < NUM_BATCHES:
            self._say(dispatch_pb2.GroupRequest(free_actors=self._num_free))
            self._begin()
            if self._train(batch):
                batch += 1
                continue
            self._end_next()

    def _say(self, body: Body) -> None:
        with self.ledger.transaction():
            self.assigner.handle(Received(peer=PEER, body=body, num_bytes=0))

    def _begin(self) -> None:
        with self.ledger.transaction():
            self.assigner.tick()
        for _, body in self.assigner.take_outbox():
            if isinstance(body, dispatch_pb2.GroupAssignment):
                self._num_free -= len(body.member_indices)
                length_s = (SLOWNESS if body.task_kind == "slow" else 1.0) * self._draw.uniform(0.8, 1.2)
                heapq.heappush(self._ends, (self.now_s + length_s, next(self._order), body))

    def _end_next(self) -> None:
        self.now_s, _, assignment = heapq.heappop(self._ends)
        self._num_free += len(assignment.member_indices)
        if self._draw.random() < 0.05:
            self._say(dispatch_pb2.GroupFailed(group_id=assignment.group_id, reason="GROUP_WALL_TIME"))
            return
        for index, seed in zip(assignment.member_indices, assignment.sampling_seeds, strict=True):
            member = Member(
                assignment=assignment,
                run_id=self.ledger.run_id,
                tokenizer_hash="",
                member_index=index,
                sampling_seed=seed,
                temperature=1.0,
                policy_version=self.assigner.announced.policy_version if self.assigner.announced else 0,
            )
            played = made_up(member)
            assert played.identity is not None
            self._say(
                dispatch_pb2.SubmitTrajectory(
                    trajectory=trajectory_to_bytes(played), identity=identity_to_proto(played.identity)
                )
            )

    def _train(self, batch: int) -> bool:
        with self.ledger.transaction():
            taken = self.ledger.batches.take(batch)
            if taken is None:
                return False
            verdicts = [GroupVerdict(group_id=group.group_id, verdict="kept", score=1.0) for group in taken.groups]
            self.ledger.batches.record(batch, training_step=batch + 1, run_epoch=1, verdicts=verdicts)
            self.ledger.batches.consume(batch, BatchOutcome.TRAINED)
        self.meter.observe(taken, range(len(taken.groups)))
        self.lost.update(group.kind for group in taken.lost)
        return True


@pytest.mark.slow
@pytest.mark.parametrize(("max_policy_lag", "num_actors"), [(0, 16), (2, 48), (4, 24)])
def test_the_share_of_slow_kinds_that_enters_equals_the_share_offered(
    tmp_path: Path, max_policy_lag: int, num_actors: int
) -> None:
    play = Play(tmp_path, max_policy_lag=max_policy_lag, num_actors=num_actors)
    play.run()
    shares = play.meter.shares()
    offered = shares["learner/length_bias/offered_share/kind/slow"]
    entered = shares["learner/length_bias/entered_share/kind/slow"]
    assert abs(entered - offered) <= 0.05 * offered
    assert 0.4 < offered < 0.6
    counts = play.meter.counts
    # What failed is offered and lost, and its slot was played by another group.
    assert sum(play.lost.values()) > 0
    assert counts["offered"]["kind/slow"] - counts["entered"]["kind/slow"] == play.lost["slow"]
    assert counts["entered"].total() / 2 == NUM_BATCHES * GROUPS_PER_STEP
    long_share = sum(value for name, value in shares.items() if "entered_share/duration/below_16" in name)
    assert long_share > 0.2
