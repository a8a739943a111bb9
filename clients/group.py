"""Plays the members of one group, and makes sure that what it hands in is a group.

Invariant: a member is handed in once, by an episode that the policy itself brought to an end; episodes that broke are
played again in a fresh one, and when that is not possible any more the whole group fails with a reason. All episodes of
the group began in the same state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from clients.actor import Actor, EpisodePlan
from clients.agents import Agent
from clients.assignment import Assignment, Member, PlayRules
from clients.calls import Backoff
from clients.episode import RemoteEpisode
from clients.policies.base import derive_seed
from clients.policies.engines import EngineRegistry
from clients.retry_rules import is_transient
from longturn.errors import CallRefusedError, EpisodeError, LongturnError, PolicyError, UnreachableError
from longturn.leaf import first_leaf
from longturn.metrics import Metrics
from longturn.records import EndCause, SamplingParams, Trajectory, TrajectoryIdentity

logger = logging.getLogger(__name__)

_VERSION_POLL_S = 5.0


class GroupFailedError(LongturnError):
    """The group cannot be completed; reason as in dispatch.proto's GroupFailed."""

    reason = "GROUP_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlayers:
    """What groups of one pool share."""

    actor: Actor
    make_agent: Callable[[SamplingParams, str, PlayRules], Agent]
    engines: EngineRegistry
    capacity: AbstractAsyncContextManager[object]
    """Entered once per episode; waits while too many are played."""
    submit: Callable[[Trajectory], Awaitable[None]]
    on_freed: Callable[[], None]
    """Called whenever an episode ended."""
    tokenizer_hash: str
    metrics: Metrics


class GroupRun:
    """One assignment being played."""

    def __init__(self, assignment: Assignment, rules: PlayRules, players: GroupPlayers, *, run_id: str) -> None:
        self.assignment = assignment
        self._rules = rules
        self._players = players
        self.run_id = run_id
        self._cancel_cause = EndCause.SHUTDOWN
        self._start_hash: bytes | None = None
        self._is_reproducible = True
        self._first_version: int | None = None
        self._backoff = Backoff(first_s=0.2, most_s=5.0)
        self.num_unfinished = len(assignment.members)
        """Members that were not handed in yet."""

    def stop_for(self, cause: EndCause) -> None:
        """Say why the running episodes end; cancel the task of `run` next."""
        self._cancel_cause = cause

    async def run(self, *, skip: frozenset[int] = frozenset()) -> None:
        """Play and submit all members but those in `skip`; raise GroupFailedError if that is impossible."""
        self.num_unfinished -= len(skip)
        members = [member for member in self.assignment.members if member.member_index not in skip]
        wall = asyncio.timeout(self._rules.max_group_s or None)
        try:
            async with wall:
                await self._play_all(members)
        except TimeoutError as error:
            if not wall.expired():
                raise
            message = f"{self.num_unfinished} members unfinished after {self._rules.max_group_s:g} s"
            raise GroupFailedError(message, reason="GROUP_WALL_TIME") from error

    async def _play_all(self, members: list[Member]) -> None:
        failure: GroupFailedError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                for member in members:
                    tasks.create_task(self._play_member(member))
        except* GroupFailedError as failures:
            failure = first_leaf(failures)
        if failure is not None:
            raise failure

    async def _play_member(self, member: Member) -> None:
        num_tries = self._rules.max_member_retries + 1
        for retry_index in range(num_tries):
            if retry_index:
                self._players.metrics.count("actors/member/num_retries")
                await asyncio.sleep(self._backoff.delay_s(retry_index))
            outcome = await self._try_once(member, retry_index)
            if isinstance(outcome, Trajectory):
                await self._players.submit(outcome)
                self.num_unfinished -= 1
                return
            self._note(member, retry_index, outcome)
            if retry_index == num_tries - 1:
                message = f"member {member.member_index} broke {num_tries} times; the last: {outcome}"
                raise GroupFailedError(message, reason="MEMBER_RETRIES")

    async def _try_once(self, member: Member, retry_index: int) -> Trajectory | LongturnError:
        """A trajectory that is a member, or why this episode gave none."""
        try:
            trajectory = await self._play_once(member, retry_index)
        except (EpisodeError, PolicyError, UnreachableError, CallRefusedError) as error:
            return error
        return broken_by(trajectory, is_wall_time_broken=True) or trajectory

    def _note(self, member: Member, retry_index: int, broken: LongturnError) -> None:
        """Count a broken episode; give the group up at once if another one would break in the same way."""
        self._players.metrics.count(f"actors/episode/broken_{broken.reason.lower()}")
        logger.warning(
            "episode broke",
            extra={
                "group_id": self.assignment.group_id,
                "member_index": member.member_index,
                "retry_index": retry_index,
                "reason": broken.reason,
                "cause": str(broken),
            },
        )
        if not is_transient(broken):
            raise GroupFailedError(str(broken), reason=broken.reason) from broken

    async def _play_once(self, member: Member, retry_index: int) -> Trajectory:
        players = self._players
        async with players.capacity:
            await self._await_version(is_retry=retry_index > 0)
            self._is_reproducible = await players.actor.is_reproducible(self.assignment.task.environment)
            sampling = self._sampling(member, retry_index)
            plan = self._plan(member, retry_index, sampling)
            agent = players.make_agent(sampling, self._episode_key(member, retry_index), self._rules)
            try:
                return await players.actor.play(
                    plan, agent, on_start=self._check_start, cancel_cause=lambda: self._cancel_cause
                )
            finally:
                players.on_freed()

    def _sampling(self, member: Member, retry_index: int) -> SamplingParams:
        chosen = self.assignment.temperature
        return SamplingParams(
            temperature=self._rules.temperature if chosen is None else chosen,
            max_new_tokens=self._rules.max_new_tokens,
            seed=derive_seed(member.sampling_seed, retry_index) if retry_index else member.sampling_seed,
        )

    def _plan(self, member: Member, retry_index: int, sampling: SamplingParams) -> EpisodePlan:
        assignment, rules = self.assignment, self._rules
        return EpisodePlan(
            task=assignment.task,
            seed=assignment.seed,
            task_kind=assignment.task_kind,
            max_turns=rules.max_turns,
            max_episode_s=rules.max_episode_s,
            with_progress=rules.with_progress,
            identity=TrajectoryIdentity(
                run_id=self.run_id,
                group_id=assignment.group_id,
                member_index=member.member_index,
                attempt=assignment.attempt,
            ),
            retry_index=retry_index,
            sampling=sampling,
            tokenizer_hash=self._players.tokenizer_hash,
        )

    def _episode_key(self, member: Member, retry_index: int) -> str:
        assignment = self.assignment
        return f"{assignment.group_id}.{assignment.attempt}.{member.member_index}.{retry_index}"

    async def _await_version(self, *, is_retry: bool) -> None:
        """Start only with a version inside the window; a retry also within one of the group's first."""
        engines = self._players.engines
        while engines.policy_version < self.assignment.min_policy_version:
            await engines.wait_change(_VERSION_POLL_S)
        version = engines.policy_version
        if self._first_version is None:
            self._first_version = version
        highest = self.assignment.max_policy_version
        if is_retry:
            highest = self._first_version + 1 if highest is None else min(highest, self._first_version + 1)
        if highest is not None and version > highest:
            message = f"a member would start with version {version}, its group's window ends at {highest}"
            raise GroupFailedError(message, reason="VERSION_WINDOW")

    def _check_start(self, episode: RemoteEpisode) -> None:
        state_hash = episode.initial.state_hash
        if self._start_hash is None:
            self._start_hash = state_hash
        elif self._is_reproducible and state_hash != self._start_hash:
            task = self.assignment.task
            message = (
                f"two episodes of {task.environment}/{task.task_id}, seed {self.assignment.seed}, began in different "
                f"states: {self._start_hash.hex()} and {state_hash.hex()}"
            )
            raise GroupFailedError(message, reason="START_MISMATCH")


def broken_by(trajectory: Trajectory, *, is_wall_time_broken: bool) -> LongturnError | None:
    """Why this episode says nothing about the policy; None if the policy brought it to an end."""
    if trajectory.failure is not None:
        return EpisodeError(trajectory.failure.message, reason=trajectory.failure.reason)
    cause = trajectory.end_cause
    is_cut = is_wall_time_broken and cause is not None and cause.is_wall_time
    if is_cut or not trajectory.status.is_result:
        name = cause.name if cause else trajectory.status.name
        return EpisodeError(f"ended by {name} after {len(trajectory.turns)} turns", reason=name)
    return None
