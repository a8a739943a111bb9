"""The actor pool: asks the learner for groups, plays them, hands trajectories in.

Invariant: a finished trajectory lies in the spool until the learner acknowledged it, and is sent again until then; a
group is held until all its members are acknowledged or it was given up, and every heartbeat lists what is held. All
state belongs to one event loop; groups are tasks of one TaskGroup, so a bug in one of them ends the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clients.assignment import PlayRules, assignment_from_proto, rules_from_proto
from clients.calls import Peer
from clients.group import GroupFailedError, GroupPlayers, GroupRun
from clients.learner_link import LearnerLink, PoolOptions
from clients.policies.engines import Engine, EngineRegistry
from clients.spool import Spool
from longturn.codec import identity_from_proto, trajectory_to_bytes
from longturn.dispatch import PROTOCOL_VERSION
from longturn.errors import ConfigError, LongturnError, WireError
from longturn.leaf import first_leaf
from longturn.metrics import Metrics
from longturn.records import EndCause, Trajectory, TrajectoryIdentity
from longturn.status import StatusBoard
from longturn.v1 import dispatch_pb2

logger = logging.getLogger(__name__)

_HELLO_S = 2.0
_REQUEST_PAUSE_S = 0.05
_NUM_SILENT_BEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A group being played."""

    run: GroupRun
    task: asyncio.Task[None]

    @property
    def attempt(self) -> int:
        return self.run.assignment.attempt


class ActorPool:
    """Plays groups for one learner until it says that the run is over."""

    def __init__(
        self,
        options: PoolOptions,
        *,
        link: LearnerLink,
        engines: EngineRegistry,
        make_players: Callable[[ActorPool], GroupPlayers],
        spool: Spool,
        metrics: Metrics,
        board: StatusBoard,
    ) -> None:
        """`make_players` gets the pool, whose `submit` and `wants_more` the players call."""
        self._options = options
        self._link = link
        self._engines = engines
        self._spool = spool
        self._metrics = metrics
        self._board = board
        self._players = make_players(self)
        self._welcome: dispatch_pb2.Welcome | None = None
        self._rules: PlayRules | None = None
        self._groups: dict[str, _Held] = {}
        self._sent_s: dict[TrajectoryIdentity, float] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._wants_more = asyncio.Event()
        self._heard = asyncio.Event()
        self._said_hello_s = 0.0

    async def run(self) -> str:
        """Play until EndOfRun and return its reason.

        Raises UnreachableError once the learner was silent for its budget, ConfigError if it refuses the pool. When
        cancelled, running episodes are ended and the learner is told before the cancellation goes on.
        """
        failure: LongturnError | None = None
        reason = ""
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._beat()), tasks.create_task(self._ask())]
                reason = await self._receive(tasks)
                self._board.set_phase("draining")
                for task in (*helpers, *(held.task for held in self._groups.values())):
                    task.cancel()
        except* LongturnError as errors:
            failure = first_leaf(errors)
        finally:
            await self._link.send(dispatch_pb2.Goodbye(reason="SHUTDOWN"))
        if failure is not None:
            raise failure
        logger.info("run is over", extra={"reason": reason})
        return reason

    # -- what the players call

    async def submit(self, trajectory: Trajectory) -> None:
        """Keep and send a finished trajectory; wait while too many are unacknowledged."""
        identity = trajectory.identity
        if identity is None:
            raise ValueError("a trajectory for the learner needs an identity")
        self._count(trajectory)
        self._spool.add(identity, trajectory_to_bytes(trajectory))
        await self._submit(identity)
        if len(self._spool) >= self._options.max_unacked:
            self._has_room.clear()
            reason = f"{len(self._spool)} trajectories without an ack"
            with self._board.waiting("learner", reason, budget_s=self._options.learner_budget_s):
                await self._has_room.wait()

    def wants_more(self) -> None:
        """Something changed: tell the learner how many actors are free."""
        self._wants_more.set()

    @property
    def num_remembered(self) -> int:
        """Groups and trajectories that the pool knows of."""
        return len(self._groups) + len(self._sent_s)

    # -- from the learner

    async def _receive(self, tasks: asyncio.TaskGroup) -> str:
        """Take messages until EndOfRun; return its reason."""
        while True:
            body = await self._link.receive()
            self._heard.set()
            match body:
                case dispatch_pb2.EndOfRun() as message:
                    return message.reason
                case dispatch_pb2.Ack() as message:
                    self._on_ack(message)
                case dispatch_pb2.GroupAssignment() as message:
                    await self._on_assignment(message, tasks)
                case dispatch_pb2.PolicyAnnouncement() as message:
                    self._announce(message.engines, message.policy_version, message.run_epoch)
                case dispatch_pb2.Welcome() as message:
                    await self._on_welcome(message)
                case dispatch_pb2.Refusal() as message:
                    await self._on_refusal(message)
                case _:
                    pass  # A heartbeat has done its work by arriving.

    async def _on_welcome(self, message: dispatch_pb2.Welcome) -> None:
        self._check_versions(message)
        known, self._welcome = self._welcome, message
        is_new_run = known is None or known.run_id != message.run_id
        is_new_epoch = known is None or is_new_run or known.run_epoch != message.run_epoch
        if is_new_run:
            self._stop_groups("another run answers")
            self._engines.begin_run()
        self._rules = rules_from_proto(message.rules)
        logger.info("welcome", extra={"run_id": message.run_id, "run_epoch": message.run_epoch})
        self._board.set_phase("playing")
        self._board.set_fact("run_id", message.run_id)
        self._board.set_fact("run_epoch", message.run_epoch)
        if message.engines or message.run_epoch == self._engines.run_epoch:
            self._announce(message.engines, message.policy_version, message.run_epoch)
        # Every Hello that queued up during an outage is answered, and the first answer has been acted upon.
        asked_s = math.inf if is_new_epoch else self._said_hello_s
        for identity in self._spool:
            if self._sent_s.get(identity, -math.inf) < asked_s:
                await self._submit(identity)
        await self._send_heartbeat(message.run_id)
        self._wants_more.set()

    def _check_versions(self, message: dispatch_pb2.Welcome) -> None:
        if message.protocol_version != PROTOCOL_VERSION:
            raise ConfigError(
                f"the learner at {self._link.address} speaks dispatch protocol {message.protocol_version!r}, this pool "
                f"{PROTOCOL_VERSION!r}; install the same longturn version on both sides",
                reason="PROTOCOL_MISMATCH",
            )
        if message.tokenizer_hash and message.tokenizer_hash != self._options.tokenizer_hash:
            raise ConfigError(
                f"the learner trains with tokenizer {message.tokenizer_hash[:12]}, this pool renders with "
                f"{self._options.tokenizer_hash[:12]}; set act.renderer.tokenizer to the learner's model folder",
                reason="TOKENIZER_MISMATCH",
            )

    async def _on_refusal(self, message: dispatch_pb2.Refusal) -> None:
        if message.reason != "HELLO_FIRST":
            raise ConfigError(f"the learner at {self._link.address} refuses: {message.message}", reason=message.reason)
        await self._say_hello(pause_s=0.2)

    def _announce(self, endpoints: Iterable[dispatch_pb2.EngineEndpoint], policy_version: int, run_epoch: int) -> None:
        engines = [
            Engine(
                url=endpoint.url.rstrip("/"),
                policy_version=endpoint.policy_version,
                api_key=endpoint.api_key,
                cache_salt=endpoint.cache_salt,
            )
            for endpoint in endpoints
        ]
        if not self._engines.announce(engines, policy_version=policy_version, run_epoch=run_epoch):
            self._metrics.count("actors/announcement/num_ignored")
            return
        self._board.set_fact("policy_version", policy_version)
        self._metrics.gauge("actors/policy/version", policy_version)
        self._wants_more.set()

    def _on_ack(self, message: dispatch_pb2.Ack) -> None:
        identity = identity_from_proto(message.identity)
        verdict = dispatch_pb2.AckVerdict.Name(message.verdict).removeprefix("ACK_VERDICT_").lower()
        self._metrics.count(f"actors/trajectory/num_{verdict}")
        self._spool.remove(identity)
        self._sent_s.pop(identity, None)
        if len(self._spool) < self._options.max_unacked:
            self._has_room.set()
        if message.verdict in (dispatch_pb2.ACK_VERDICT_SUPERSEDED, dispatch_pb2.ACK_VERDICT_REFUSED):
            fields = {"group_id": identity.group_id, "member_index": identity.member_index, "reason": message.reason}
            logger.warning("trajectory %s", verdict, extra=fields)
            held = self._groups.get(identity.group_id)
            if held is not None and held.attempt == identity.attempt:
                self._stop(held, message.reason or verdict)

    async def _on_assignment(self, message: dispatch_pb2.GroupAssignment, tasks: asyncio.TaskGroup) -> None:
        if self._welcome is None or self._rules is None:
            return  # Meant for an earlier life; the learner sends it again to whoever said Hello.
        held = self._groups.get(message.group_id)
        if held is not None and held.attempt >= message.attempt:
            return
        if held is not None:
            self._stop(held, f"attempt {message.attempt} was issued")
        try:
            assignment = assignment_from_proto(message)
        except WireError as error:
            await self._give_up(message.group_id, message.attempt, error)
            return
        run = GroupRun(assignment, self._rules, self._players, run_id=self._welcome.run_id)
        finished = [identity for identity in self._spool if self._is_part(identity, run)]
        for identity in finished:
            await self._submit(identity)
        skip = frozenset(identity.member_index for identity in finished)
        task = tasks.create_task(self._play(run, skip), name=f"group-{assignment.group_id}")
        self._groups[assignment.group_id] = _Held(run=run, task=task)

    def _is_part(self, identity: TrajectoryIdentity, run: GroupRun) -> bool:
        assignment = run.assignment
        return (identity.run_id, identity.group_id, identity.attempt) == (
            run.run_id,
            assignment.group_id,
            assignment.attempt,
        )

    # -- groups

    async def _play(self, run: GroupRun, skip: frozenset[int]) -> None:
        group_id, attempt = run.assignment.group_id, run.assignment.attempt
        try:
            await run.run(skip=skip)
            self._metrics.count("actors/group/num_finished")
        except GroupFailedError as error:
            await self._give_up(group_id, attempt, error)
        finally:
            held = self._groups.get(group_id)
            if held is not None and held.run is run:
                del self._groups[group_id]
            self._wants_more.set()

    async def _give_up(self, group_id: str, attempt: int, error: LongturnError) -> None:
        self._metrics.count(f"actors/group/failed_{error.reason.lower()}")
        logger.warning("group failed", extra={"group_id": group_id, "reason": error.reason, "cause": str(error)})
        await self._link.send(
            dispatch_pb2.GroupFailed(group_id=group_id, attempt=attempt, reason=error.reason, message=str(error))
        )

    def _stop(self, held: _Held, why: str) -> None:
        self._metrics.count("actors/group/num_stopped")
        logger.info("group stopped", extra={"group_id": held.run.assignment.group_id, "reason": why})
        held.run.stop_for(EndCause.STALENESS)
        held.task.cancel()
        self._groups.pop(held.run.assignment.group_id, None)

    def _stop_groups(self, why: str) -> None:
        for held in list(self._groups.values()):
            self._stop(held, why)

    # -- to the learner

    async def _submit(self, identity: TrajectoryIdentity) -> None:
        self._sent_s[identity] = time.monotonic()
        await self._link.send(self._spool.message(identity))

    async def _say_hello(self, *, pause_s: float) -> None:
        """Introduce the pool, unless it did within `pause_s`."""
        if time.monotonic() - self._said_hello_s < pause_s:
            return
        self._said_hello_s = time.monotonic()
        await self._link.send(
            dispatch_pb2.Hello(
                pool_id=self._options.pool_id,
                incarnation=self._options.incarnation,
                protocol_version=PROTOCOL_VERSION,
                tokenizer_hash=self._options.tokenizer_hash,
                num_actors=self._options.num_actors,
            )
        )

    async def _ask(self) -> None:
        """Tell the learner how many actors are free whenever that may have changed."""
        while True:
            await self._wants_more.wait()
            self._wants_more.clear()
            if self._welcome is not None and not self._is_learner_silent:
                await self._link.send(dispatch_pb2.GroupRequest(free_actors=self._num_free))
            await asyncio.sleep(_REQUEST_PAUSE_S)

    @property
    def _num_free(self) -> int:
        if not self._has_room.is_set():
            return 0
        num_busy = sum(held.run.num_unfinished for held in self._groups.values())
        return max(0, self._options.num_actors - num_busy)

    @property
    def _is_learner_silent(self) -> bool:
        heartbeat_s = self._welcome.heartbeat_s if self._welcome is not None else 0.0
        return self._welcome is None or self._link.silence_s > _NUM_SILENT_BEATS * max(heartbeat_s, 0.1)

    async def _beat(self) -> None:
        while True:
            if self._welcome is None or self._is_learner_silent:
                await self._await_learner()
            else:
                await self._send_heartbeat(self._welcome.run_id)
                await self._send_again()
                self._wants_more.set()
                await asyncio.sleep(max(self._welcome.heartbeat_s, 0.1))

    async def _await_learner(self) -> None:
        """Say Hello until somebody answers; raise UnreachableError when the budget is spent."""
        options, address = self._options, self._link.address
        peer = Peer(name="learner", address=address, setting="act.dispatch.address", command="longturn learn")
        attempt = 0
        with self._board.waiting("learner", f"no answer at {address}", budget_s=options.learner_budget_s):
            while self._is_learner_silent:
                if attempt:
                    fields = {"address": address, "attempt": attempt, "start_with": peer.command}
                    logger.warning("learner does not answer", extra=fields)
                if self._link.silence_s > options.learner_budget_s:
                    raise peer.unreachable(options.learner_budget_s, f"{attempt} attempts")
                attempt += 1
                await self._say_hello(pause_s=_HELLO_S / 2)
                await self._hear(_HELLO_S)

    async def _hear(self, timeout_s: float) -> None:
        """Wait for any message."""
        self._heard.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._heard.wait()

    async def _send_heartbeat(self, run_id: str) -> None:
        held = {(held.run.assignment.group_id, held.attempt) for held in self._groups.values()}
        held |= {(item.group_id, item.attempt) for item in self._spool if item.run_id == run_id}
        num_running = self._options.num_actors - self._num_free
        self._metrics.gauge("actors/episode/num_running", num_running)
        self._metrics.gauge("actors/trajectory/num_unacked", len(self._spool))
        await self._link.send(
            dispatch_pb2.Heartbeat(
                held=[dispatch_pb2.HeldAssignment(group_id=group, attempt=attempt) for group, attempt in sorted(held)],
                running_episodes=num_running,
                unacked_trajectories=len(self._spool),
                policy_version=self._engines.policy_version,
                run_epoch=self._engines.run_epoch,
            )
        )

    async def _send_again(self) -> None:
        late_s = time.monotonic() - self._options.resend_s
        for identity in self._spool:
            if self._sent_s.get(identity, 0.0) < late_s:
                self._metrics.count("actors/trajectory/num_sent_again")
                await self._submit(identity)

    def _count(self, trajectory: Trajectory) -> None:
        metrics = self._metrics
        metrics.count("actors/episode/num_finished")
        metrics.count("actors/episode/num_success", float(trajectory.success))
        metrics.count("actors/episode/sum_turns", len(trajectory.turns))
        metrics.count("actors/episode/sum_completion_tokens", trajectory.num_completion_tokens)
        metrics.count("actors/episode/sum_duration_s", trajectory.duration_s)
        metrics.count("actors/turn/num_malformed", sum(not turn.format_valid for turn in trajectory.turns))
        metrics.count("actors/turn/num_invalid", sum(not turn.action_valid for turn in trajectory.turns))
