"""What the dispatcher answers to each message: the rules of dispatch, without threads.

Invariant: every method runs inside one ledger transaction; messages leave through `outbox`, which the caller sends
after the commit. A group is held by at most one peer, and only pools that said Hello are given anything.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from learner.acceptance import AcceptanceRules, refusal_reason
from learner.ledger.admission import slots_assignable_below
from learner.ledger.records import Assignment, Receipt, Submission
from learner.ledger.store import Ledger
from learner.ledger.tasks import sampling_seed
from learner.pools import Pool, PoolBook
from longturn.codec import identity_from_proto, task_to_proto, trajectory_from_bytes
from longturn.dispatch import PROTOCOL_VERSION, Body, Received
from longturn.errors import WireError
from longturn.metrics import Metrics
from longturn.records import Purpose
from longturn.v1 import dispatch_pb2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """Settings of the dispatcher."""

    run_seed: int
    groups_per_step: int
    max_policy_lag: int
    num_batches: int
    config_digest: str
    tokenizer_hash: str
    vocabulary_size: int
    max_row_tokens: int
    heartbeat_s: float
    pool_timeout_s: float
    eval_temperature: float | None
    require_engine: bool
    play: dispatch_pb2.PlayRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """The newest version that at least one engine confirmed, and the engines in rotation."""

    policy_version: int
    training_step: int
    engines: tuple[dispatch_pb2.EngineEndpoint, ...]


class Assigner:
    """Answers pools. Owned by the dispatcher's thread."""

    def __init__(
        self,
        ledger: Ledger,
        rules: DispatchRules,
        metrics: Metrics,
        *,
        run_epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self.run_epoch = run_epoch
        self.announced: Announced | None = None
        self.end_reason: str | None = None
        self.pools = PoolBook(timeout_s=rules.pool_timeout_s)
        self.outbox: list[tuple[bytes, Body]] = []
        self._acceptance = AcceptanceRules(
            tokenizer_hash=rules.tokenizer_hash,
            temperature=rules.play.temperature,
            vocabulary_size=rules.vocabulary_size,
            max_row_tokens=rules.max_row_tokens,
        )
        self._last_beat_s = clock()
        self._asked_s: dict[bytes, float] = {}
        self._handlers: dict[type[object], Callable[[bytes, Any], None]] = {
            dispatch_pb2.Hello: self._on_hello,
            dispatch_pb2.GroupRequest: self._on_group_request,
            dispatch_pb2.SubmitTrajectory: self._on_submit,
            dispatch_pb2.GroupFailed: self._on_group_failed,
            dispatch_pb2.Heartbeat: self._on_heartbeat,
            dispatch_pb2.Goodbye: self._on_goodbye,
        }

    def adopt_held_groups(self) -> None:
        """After a start: give pools that the ledger knows of the usual time to come back before their groups move."""
        for group in self._ledger.groups.open_groups():
            if group.holder is not None:
                self.pools.expect(group.holder, self._clock()).sent_s[group.group_id] = self._clock()

    # -- messages

    def handle(self, message: Received) -> None:
        """Answer one message."""
        kind = type(message.body)
        handler = self._handlers.get(kind)
        if handler is None:
            self._metrics.count("learner/dispatch/unexpected_messages")
            return
        pool = self.pools.known(message.peer)
        if pool is None and kind is not dispatch_pb2.Hello:
            if kind is not dispatch_pb2.Goodbye:
                self._ask_for_hello(message.peer)
            return
        if pool is not None:
            pool.last_heard_s = self._clock()
        handler(message.peer, message.body)

    def _ask_for_hello(self, peer: bytes) -> None:
        """Once per heartbeat: a stranger's queue may hold hundreds of messages, and one Hello answers them all."""
        now_s = self._clock()
        if now_s - self._asked_s.get(peer, -math.inf) < self._rules.heartbeat_s:
            return
        self._asked_s = {other: at_s for other, at_s in self._asked_s.items() if now_s - at_s < 60.0}
        self._asked_s[peer] = now_s
        self._refuse(peer, "HELLO_FIRST", "say Hello, then send unacknowledged trajectories again")

    def _send(self, peer: bytes, body: Body) -> None:
        self.outbox.append((peer, body))

    def _refuse(self, peer: bytes, reason: str, message: str) -> None:
        self._send(peer, dispatch_pb2.Refusal(reason=reason, message=message))

    def _on_hello(self, peer: bytes, hello: dispatch_pb2.Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            text = f"the learner speaks dispatch protocol {PROTOCOL_VERSION}, the pool {hello.protocol_version!r}"
            self._refuse(peer, "PROTOCOL_MISMATCH", f"{text}; install the same longturn on both sides")
            return
        if hello.tokenizer_hash and hello.tokenizer_hash != self._rules.tokenizer_hash:
            text = f"the pool renders with tokenizer {hello.tokenizer_hash[:12]}, the learner trains with"
            text = f"{text} {self._rules.tokenizer_hash[:12]}; point the pool at the learner's model folder"
            self._refuse(peer, "TOKENIZER_MISMATCH", text)
            return
        if not hello.pool_id:
            self._refuse(peer, "NO_POOL_ID", "set a pool_id")
            return
        # Every Hello that queued up during an outage is answered; the pool joins once.
        is_new = self.pools.known(peer) is None
        for earlier in self.pools.admit(peer, pool_id=hello.pool_id, num_actors=hello.num_actors, now_s=self._clock()):
            self._drop(earlier, "pool restarted")
        self._send(peer, self._welcome())
        if self.end_reason is not None:
            self._send(peer, dispatch_pb2.EndOfRun(reason=self.end_reason))
        if is_new:
            logger.info("pool admitted", extra={"pool_id": hello.pool_id, "num_actors": hello.num_actors})

    def _welcome(self) -> dispatch_pb2.Welcome:
        announced = self.announced
        return dispatch_pb2.Welcome(
            run_id=self._ledger.run_id,
            run_epoch=self.run_epoch,
            config_digest=self._rules.config_digest,
            protocol_version=PROTOCOL_VERSION,
            engines=announced.engines if announced else (),
            policy_version=announced.policy_version if announced else 0,
            rules=self._rules.play,
            tokenizer_hash=self._rules.tokenizer_hash,
            heartbeat_s=self._rules.heartbeat_s,
        )

    def _on_group_request(self, peer: bytes, request: dispatch_pb2.GroupRequest) -> None:
        if request.HasField("proposed_task"):
            self._refuse(peer, "EXTERNAL_REFUSED", "this learner takes no proposed tasks")
            return
        self.pools.expect(peer, self._clock()).free_actors = request.free_actors
        if self.end_reason is not None:
            self._send(peer, dispatch_pb2.EndOfRun(reason=self.end_reason))

    def _on_submit(self, peer: bytes, message: dispatch_pb2.SubmitTrajectory) -> None:
        receipt, reason = self._take_in(message)
        self._metrics.count(f"learner/trajectory/{receipt.name.lower()}")
        self._send(peer, dispatch_pb2.Ack(identity=message.identity, verdict=_verdict(receipt), reason=reason))
        if receipt is Receipt.REFUSED:
            identity = identity_from_proto(message.identity)
            logger.warning("trajectory refused", extra={"identity": identity, "reason": reason})
            # Whoever holds the group will not send it again, so the member would stay missing for ever.
            if any(group.group_id == identity.group_id for group in self._ledger.groups.open_groups(peer)):
                self._fail(identity.group_id, identity.attempt, "TRAJECTORY_REFUSED", reason)

    def _take_in(self, message: dispatch_pb2.SubmitTrajectory) -> tuple[Receipt, str]:
        try:
            trajectory = trajectory_from_bytes(message.trajectory)
        except WireError as error:
            return Receipt.REFUSED, str(error)
        identity = identity_from_proto(message.identity)
        if trajectory.identity != identity:
            return Receipt.REFUSED, "IDENTITY_MISMATCH: the trajectory carries another identity than its envelope"
        receipt, reason = self._ledger.groups.classify(identity)
        if receipt is not Receipt.ACCEPTED:
            return receipt, reason
        reason = refusal_reason(
            trajectory,
            self._acceptance,
            purpose=self._purpose(identity.group_id),
            versions=self._ledger.versions,
        )
        if reason:
            return Receipt.REFUSED, reason
        return self._ledger.groups.submit(Submission(trajectory=trajectory, data=message.trajectory))

    def _purpose(self, group_id: str) -> Purpose:
        return self._ledger.groups.assignment(group_id).purpose

    def _on_group_failed(self, peer: bytes, message: dispatch_pb2.GroupFailed) -> None:
        self._fail(message.group_id, message.attempt, message.reason, message.message)

    def _fail(self, group_id: str, attempt: int, reason: str, message: str) -> None:
        if self._ledger.groups.fail(group_id, attempt, reason, message):
            self._metrics.count("learner/group/failed")
            logger.warning("group failed", extra={"group_id": group_id, "reason": reason, "detail": message})

    def _on_heartbeat(self, peer: bytes, beat: dispatch_pb2.Heartbeat) -> None:
        pool = self.pools.expect(peer, self._clock())
        pool.running_episodes, pool.unacked_trajectories = beat.running_episodes, beat.unacked_trajectories
        listed = {(held.group_id, held.attempt) for held in beat.held}
        grace_s = 1.5 * self._rules.heartbeat_s
        for group in self._ledger.groups.open_groups(peer):
            sent_s = pool.sent_s.get(group.group_id, 0.0)
            if (group.group_id, group.attempt) not in listed and self._clock() - sent_s > grace_s:
                self._metrics.count("learner/group/sent_again")
                self._send_assignment(pool, self._ledger.groups.assignment(group.group_id))

    def _on_goodbye(self, peer: bytes, message: dispatch_pb2.Goodbye) -> None:
        pool = self.pools.expect(peer, self._clock())
        self.pools.remove(peer)
        self._drop(pool, "pool said goodbye")

    # -- what happens by itself

    def tick(self) -> None:
        """Drop silent pools, end groups that took too long, beat, and assign what may be assigned."""
        now_s = self._clock()
        for pool in self.pools.silent(now_s):
            self.pools.remove(pool.peer)
            self._drop(pool, "pool fell silent")
        self._end_overdue_groups()
        if now_s - self._last_beat_s >= self._rules.heartbeat_s:
            self._last_beat_s = now_s
            version = self.announced.policy_version if self.announced else 0
            self._broadcast(dispatch_pb2.Heartbeat(policy_version=version, run_epoch=self.run_epoch))
        self._assign()

    def _drop(self, pool: Pool, why: str) -> None:
        num_groups = self._ledger.groups.release(pool.peer)
        self._metrics.count("learner/pool/dropped")
        logger.warning(why, extra={"pool_id": pool.pool_id or repr(pool.peer), "num_groups": num_groups})

    def _end_overdue_groups(self) -> None:
        """Nothing waits without a deadline: if a pool does not end its group at `max_group_s`, the learner does."""
        limit_s = 1.5 * self._rules.play.max_group_s + 2 * self._rules.pool_timeout_s
        for group in self._ledger.groups.open_groups(older_than_s=limit_s):
            self._fail(group.group_id, group.attempt, "GROUP_WALL_TIME", f"no end after {limit_s:.0f} s")

    def _assign(self) -> None:
        # A group that no engine can play would only fail, and enough failures close its slot.
        if self.announced is None or self.end_reason is not None or self.lacks_engine:
            return
        for pool in self.pools.with_capacity():
            while pool.free_actors > 0:
                assignment = self._ledger.groups.next_assignment(
                    pool.peer,
                    slots_below=self.slots_below,
                    training_step=self.announced.training_step,
                    max_members=self._most_members(pool),
                )
                if assignment is None:
                    break
                self._send_assignment(pool, assignment)
                pool.free_actors -= len(assignment.member_indices)

    @property
    def lacks_engine(self) -> bool:
        """Whether groups need an engine and none is announced."""
        return self._rules.require_engine and not (self.announced and self.announced.engines)

    def _most_members(self, pool: Pool) -> int | None:
        """A group waits until all its members can start together, unless the pool has nothing else to do."""
        return pool.free_actors if self._ledger.groups.open_groups(pool.peer) else None

    @property
    def slots_below(self) -> int:
        """No slot from here on may be assigned now."""
        groups_per_step = self._rules.groups_per_step
        admitted = slots_assignable_below(
            groups_per_step=groups_per_step,
            max_policy_lag=self._rules.max_policy_lag,
            batches_consumed=self._ledger.batches.num_consumed,
        )
        return min(admitted, self._rules.num_batches * groups_per_step)

    def _send_assignment(self, pool: Pool, assignment: Assignment) -> None:
        pool.sent_s[assignment.group_id] = self._clock()
        self._metrics.count("learner/group/assigned")
        self._send(pool.peer, self._assignment_message(assignment))

    def _assignment_message(self, assignment: Assignment) -> dispatch_pb2.GroupAssignment:
        is_eval = assignment.purpose is Purpose.EVAL
        return dispatch_pb2.GroupAssignment(
            group_id=assignment.group_id,
            attempt=assignment.attempt,
            task=task_to_proto(assignment.entry.task),
            seed=assignment.entry.seed,
            member_indices=assignment.member_indices,
            sampling_seeds=[
                sampling_seed(self._rules.run_seed, assignment.group_id, index) for index in assignment.member_indices
            ],
            purpose=dispatch_pb2.Purpose.ValueType(assignment.purpose.value),
            group_size=assignment.group_size,
            min_policy_version=assignment.min_policy_version,
            max_policy_version=assignment.max_policy_version,
            task_kind=assignment.entry.kind,
            temperature=self._rules.eval_temperature if is_eval else None,
        )

    # -- what the training thread asks for

    def announce(self, announced: Announced) -> None:
        """Tell all pools which weights serve."""
        self.announced = announced
        self._broadcast(
            dispatch_pb2.PolicyAnnouncement(
                policy_version=announced.policy_version, run_epoch=self.run_epoch, engines=announced.engines
            )
        )

    def withdraw(self, url: str) -> None:
        """Tell all pools that an engine is lost; nothing if it was not announced."""
        announced = self.announced
        if announced is None or all(engine.url != url for engine in announced.engines):
            return
        self.announce(replace(announced, engines=tuple(engine for engine in announced.engines if engine.url != url)))

    def end(self, reason: str) -> None:
        """Assign nothing any more and tell all pools that the run is over."""
        self.end_reason = reason
        self._broadcast(dispatch_pb2.EndOfRun(reason=reason))

    def _broadcast(self, body: Body) -> None:
        for pool in self.pools:
            if pool.has_said_hello:
                self._send(pool.peer, body)

    def take_outbox(self) -> Sequence[tuple[bytes, Body]]:
        """The messages to send now that the transaction is committed."""
        outbox, self.outbox = self.outbox, []
        return outbox


def _verdict(receipt: Receipt) -> dispatch_pb2.AckVerdict.ValueType:
    return dispatch_pb2.AckVerdict.ValueType(receipt.value)
