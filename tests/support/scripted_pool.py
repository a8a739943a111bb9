"""An actor pool that plays no environment: it drives the real DEALER end with trajectories made up by a script.

Every trajectory is a pure function of task, member and sampling seed, so runs can be compared number by number.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from longturn.codec import identity_from_proto, identity_to_proto, task_from_proto, trajectory_to_bytes
from longturn.dispatch import PROTOCOL_VERSION, DispatchDealer
from longturn.records import (
    EndCause,
    EngineInfo,
    EpisodeStatus,
    PolicySpan,
    SamplingParams,
    TokenSpan,
    Trajectory,
    TrajectoryIdentity,
    Turn,
)
from longturn.v1 import dispatch_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member that is to be played."""

    assignment: dispatch_pb2.GroupAssignment
    run_id: str
    tokenizer_hash: str
    member_index: int
    sampling_seed: int
    temperature: float
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Instead of a trajectory: the group fails."""

    reason: str


Script = Callable[[Member], Trajectory | bytes | GiveUp | None]
"""What becomes of a member; bytes are handed in as they are, None is nothing, for ever."""


def made_up(
    member: Member,
    *,
    vocabulary_size: int = 48,
    num_turns: int | None = None,
    success: bool | None = None,
    num_ids: int = 4,
) -> Trajectory:
    """A trajectory drawn from the member's seeds."""
    order = random.Random(f"{member.assignment.task.task_id}/{member.member_index}/{member.sampling_seed}")
    length = num_turns or order.randint(2, 4)
    won = order.random() < 0.5 if success is None else success
    start = tuple(random.Random(member.assignment.task.task_id).randrange(vocabulary_size) for _ in range(5))
    turns = tuple(
        _turn(order, member, vocabulary_size, num_ids, prompt=start if index == 0 else None) for index in range(length)
    )
    return Trajectory(
        identity=TrajectoryIdentity(
            run_id=member.run_id,
            group_id=member.assignment.group_id,
            member_index=member.member_index,
            attempt=member.assignment.attempt,
        ),
        task=task_from_proto(member.assignment.task),
        task_kind=member.assignment.task_kind,
        seed=member.assignment.seed,
        initial_observation=f"start of {member.assignment.task.task_id}",
        initial_progress=0.0,
        turns=turns,
        status=EpisodeStatus.TERMINATED if won else EpisodeStatus.TRUNCATED,
        end_cause=None if won else EndCause.TURN_LIMIT,
        episode_return=float(won),
        score=float(won),
        success=won,
        sampling=SamplingParams(temperature=member.temperature, max_new_tokens=16, seed=member.sampling_seed),
        tokenizer_hash=member.tokenizer_hash,
        engine=EngineInfo(name="scripted", version="1"),
        used_privileged=True,
        duration_s=1.0,
    )


def _turn(
    order: random.Random, member: Member, vocabulary_size: int, num_ids: int, *, prompt: tuple[int, ...] | None
) -> Turn:
    completion = tuple(order.randrange(vocabulary_size) for _ in range(num_ids))
    return Turn(
        prompt_ids=prompt or tuple(order.randrange(vocabulary_size) for _ in range(3)),
        completion_ids=completion,
        behavior_logprobs=tuple(-order.uniform(3.0, 5.0) for _ in completion),
        policy_spans=(PolicySpan(start=0, end=num_ids, policy_version=member.policy_version),),
        action="go",
        observation="a room",
        action_valid=order.random() < 0.9,
        progress=order.random(),
        reasoning_span=TokenSpan(start=0, end=num_ids - 2),
        action_span=TokenSpan(start=num_ids - 2, end=num_ids),
    )


@dataclass(slots=True)
class _State:
    run_id: str = ""
    tokenizer_hash: str = ""
    temperature: float = 1.0
    policy_version: int | None = None
    held: dict[str, int] = field(default_factory=dict)
    missing: dict[str, set[int]] = field(default_factory=dict)
    unacked: dict[TrajectoryIdentity, dispatch_pb2.SubmitTrajectory] = field(default_factory=dict)


class ScriptedPool:
    """Runs in a thread of its own between `start` and `stop` (or a `with` block)."""

    def __init__(
        self, address: str, *, script: Script = made_up, pool_id: str = "scripted", num_actors: int = 1000
    ) -> None:
        self.address = address
        self.pool_id = pool_id
        self.script = script
        self.num_actors = num_actors
        self.assignments: list[dispatch_pb2.GroupAssignment] = []
        self.acks: list[dispatch_pb2.Ack] = []
        self.announced: list[int] = []
        self.refusals: list[str] = []
        self.ack_waits_s: list[float] = []
        self.end_reason: str | None = None
        self.ended = threading.Event()
        self.heard = threading.Event()
        """Set after every message of the learner."""
        self.extra: list[object] = []
        """Messages to send as they are, once connected."""
        self._wishes: list[str] = []
        self._stop = threading.Event()
        self._sent_s: dict[TrajectoryIdentity, float] = {}
        self._state = _State()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> ScriptedPool:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Leave without Goodbye, as if killed; raise what the thread raised."""
        self._stop.set()
        self._thread.join(20)
        if self._error is not None:
            raise self._error

    def forget(self) -> None:
        """Lose all assignments, as if their messages had been lost."""
        self._wishes.append("forget")

    def replay(self) -> None:
        """Ask the script again about every member that is held and was not handed in."""
        self._wishes.append("replay")

    def __enter__(self) -> ScriptedPool:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  # raised again by `stop`
            self._error = error

    async def _main(self) -> None:
        incarnation = uuid.uuid4().hex
        async with DispatchDealer(self.address, pool_id=self.pool_id, incarnation=incarnation) as dealer:
            await self._hello(dealer, incarnation)
            beat_s = time.monotonic()
            while not self._stop.is_set():
                body = await dealer.receive(timeout_s=0.05)
                if body is not None:
                    await self._on(dealer, body, incarnation)
                    self.heard.set()
                while self._wishes:
                    await self._fulfil(dealer, self._wishes.pop(0))
                while self.extra:
                    await dealer.send(self.extra.pop(0))  # type: ignore[arg-type]
                if time.monotonic() - beat_s > 0.2:
                    beat_s = time.monotonic()
                    await self._beat(dealer)
                if self.end_reason is not None:
                    await dealer.send(dispatch_pb2.Goodbye(reason="SHUTDOWN"))
                    self.ended.set()
                    return

    async def _hello(self, dealer: DispatchDealer, incarnation: str) -> None:
        await dealer.send(
            dispatch_pb2.Hello(
                pool_id=self.pool_id,
                incarnation=incarnation,
                protocol_version=PROTOCOL_VERSION,
                num_actors=self.num_actors,
            )
        )

    async def _beat(self, dealer: DispatchDealer) -> None:
        held = [
            dispatch_pb2.HeldAssignment(group_id=group_id, attempt=attempt)
            for group_id, attempt in self._state.held.items()
        ]
        await dealer.send(dispatch_pb2.Heartbeat(held=held, unacked_trajectories=len(self._state.unacked)))
        await dealer.send(dispatch_pb2.GroupRequest(free_actors=self.num_actors))

    async def _on(self, dealer: DispatchDealer, body: object, incarnation: str) -> None:
        state = self._state
        if isinstance(body, dispatch_pb2.Refusal):
            self.refusals.append(body.reason)
            if body.reason == "HELLO_FIRST":
                await self._hello(dealer, incarnation)
        elif isinstance(body, dispatch_pb2.Welcome):
            state.run_id, state.tokenizer_hash = body.run_id, body.tokenizer_hash
            state.temperature = body.rules.temperature
            if body.policy_version or self.announced:
                self._announce(body.policy_version)
            for message in state.unacked.values():
                await dealer.send(message)
            await self._beat(dealer)
        elif isinstance(body, dispatch_pb2.PolicyAnnouncement):
            self._announce(body.policy_version)
        elif isinstance(body, dispatch_pb2.GroupAssignment):
            self.assignments.append(body)
            await self._play(dealer, body)
        elif isinstance(body, dispatch_pb2.Ack):
            self._on_ack(body)
        elif isinstance(body, dispatch_pb2.EndOfRun):
            self.end_reason = body.reason

    async def _fulfil(self, dealer: DispatchDealer, wish: str) -> None:
        held, self._state.held = self._state.held, {}
        if wish == "replay":
            for assignment in list(self.assignments):
                if held.get(assignment.group_id) == assignment.attempt:
                    await self._play(dealer, assignment)

    def _announce(self, version: int) -> None:
        self._state.policy_version = version
        self.announced.append(version)

    def _on_ack(self, ack: dispatch_pb2.Ack) -> None:
        identity = identity_from_proto(ack.identity)
        self.acks.append(ack)
        self._state.unacked.pop(identity, None)
        if identity in self._sent_s:
            self.ack_waits_s.append(time.monotonic() - self._sent_s.pop(identity))
        missing = self._state.missing.get(identity.group_id)
        if missing is not None:
            missing.discard(identity.member_index)
            if not missing:
                self._state.held.pop(identity.group_id, None)

    async def _play(self, dealer: DispatchDealer, assignment: dispatch_pb2.GroupAssignment) -> None:
        state = self._state
        if state.held.get(assignment.group_id) == assignment.attempt:
            return
        state.held[assignment.group_id] = assignment.attempt
        state.missing[assignment.group_id] = set(assignment.member_indices)
        for member_index, seed in zip(assignment.member_indices, assignment.sampling_seeds, strict=True):
            outcome = self.script(
                Member(
                    assignment=assignment,
                    run_id=state.run_id,
                    tokenizer_hash=state.tokenizer_hash,
                    member_index=member_index,
                    sampling_seed=seed,
                    temperature=assignment.temperature if assignment.HasField("temperature") else state.temperature,
                    policy_version=state.policy_version or 0,
                )
            )
            if isinstance(outcome, GiveUp):
                state.held.pop(assignment.group_id)
                await dealer.send(
                    dispatch_pb2.GroupFailed(
                        group_id=assignment.group_id, attempt=assignment.attempt, reason=outcome.reason
                    )
                )
                return
            if outcome is not None:
                await self._submit(dealer, assignment, member_index, outcome)

    async def _submit(
        self,
        dealer: DispatchDealer,
        assignment: dispatch_pb2.GroupAssignment,
        member_index: int,
        outcome: Trajectory | bytes,
    ) -> None:
        identity = TrajectoryIdentity(
            run_id=self._state.run_id,
            group_id=assignment.group_id,
            member_index=member_index,
            attempt=assignment.attempt,
        )
        data = outcome if isinstance(outcome, bytes) else trajectory_to_bytes(outcome)
        message = dispatch_pb2.SubmitTrajectory(trajectory=data, identity=identity_to_proto(identity))
        self._state.unacked[identity] = message
        self._sent_s[identity] = time.monotonic()
        await dealer.send(message)
