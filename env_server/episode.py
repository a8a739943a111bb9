"""One episode as the server knows it: where it stands, what it answered, what is in flight.

Invariant: at most one step is in flight; `turn_index` counts the steps applied; the status leaves RUNNING once, in
`_set_last`. Results stay protobuf messages in here: an episode touches every step, and a record per step would double
its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from env_server.environment import EnvironmentSpec
from env_server.journal import Journal
from env_server.refusals import RefusedError
from env_server.start_request import StartRequest
from env_server.worker_process import Loss, WorkerProcess
from longturn.records import EndCause
from longturn.v1 import environment_pb2

RUNNING = environment_pb2.EPISODE_STATUS_RUNNING
TRUNCATED = environment_pb2.EPISODE_STATUS_TRUNCATED
FAILED = environment_pb2.EPISODE_STATUS_FAILED
TURN_LIMIT = environment_pb2.END_CAUSE_TURN_LIMIT

Answer = environment_pb2.StepResult | RefusedError
Deliver = Callable[[Answer, int], None]
"""Takes a step's result and about how many bytes it serialises to; or why the step is not answered now, and 0."""


class EpisodeEvents(Protocol):
    """Who is told what became of a step in flight."""

    def step_replied(self, episode: Episode, kind: int, payload: bytes) -> None:
        """The worker answered."""
        ...

    def step_lost(self, episode: Episode, loss: Loss) -> None:
        """The worker died."""
        ...


class Owner(Protocol):
    """A stream that owns episodes."""

    def episode_moved(self, episode_id: str) -> None:
        """Another stream owns the episode now."""
        ...

    def episode_dropped(self, episode_id: str) -> None:
        """The server has forgotten the episode."""
        ...


class Episode:
    """State of one episode. It is also the receiver of its own step's answer."""

    __slots__ = (
        "_events",
        "action",
        "active_at_s",
        "answered_action",
        "answered_index",
        "born_at_s",
        "deliveries",
        "drop_at_s",
        "episode_id",
        "episode_return",
        "initial",
        "is_final",
        "is_rebuilt",
        "journal",
        "key",
        "last",
        "max_turns",
        "num_crashes",
        "owner",
        "renewed_at_s",
        "reply",
        "reply_bytes",
        "request",
        "spec",
        "token_digest",
        "turn_index",
        "worker",
    )

    def __init__(
        self,
        *,
        key: int,
        episode_id: str,
        token_digest: bytes,
        request: StartRequest,
        spec: EnvironmentSpec,
        journal: Journal,
        now_s: float,
        events: EpisodeEvents,
    ) -> None:
        self.key = key
        self.episode_id = episode_id
        self.token_digest = token_digest
        self.request = request
        self.spec = spec
        self.journal = journal
        self.max_turns = request.max_turns or spec.turn_limit(request.task.task_id)
        self.born_at_s = self.renewed_at_s = self.active_at_s = now_s
        self.drop_at_s = 0.0
        self.worker: WorkerProcess | None = None
        self.owner: Owner | None = None
        self.turn_index = 0
        self.episode_return = 0.0
        self.initial = b""
        self.last = self.reply = environment_pb2.StepResult()
        self.is_final = False
        self.reply_bytes = 0
        self.answered_index, self.answered_action = -1, ""
        self.action: str | None = None
        self.deliveries: list[Deliver] = []
        self.num_crashes = 0
        self.is_rebuilt = False
        self._events = events

    @property
    def is_replayable(self) -> bool:
        """Whether the journal can bring it back."""
        return self.spec.is_replayable

    def worker_replied(self, kind: int, payload: bytes) -> None:
        """The answer to the step in flight."""
        self._events.step_replied(self, kind, payload)

    def worker_lost(self, loss: Loss) -> None:
        """There will be no answer to the step in flight."""
        self._events.step_lost(self, loss)

    def begin(self, result: environment_pb2.StepResult, payload: bytes, *, turn_index: int = 0) -> None:
        """Take the first state: that of a start, or of a fork at `turn_index`."""
        self.turn_index = result.turn_index = turn_index
        self.episode_return = result.episode_return
        self.initial = payload
        self._set_last(result, len(payload))

    def resume(
        self,
        *,
        turn_index: int,
        episode_return: float,
        initial: bytes,
        last: environment_pb2.StepResult,
        reply: environment_pb2.StepResult,
        answered: tuple[int, str],
    ) -> None:
        """Stand where an earlier process left it; `answered` is the index and the action of the last answered step."""
        self.turn_index, self.episode_return, self.initial = turn_index, episode_return, initial
        self._set_last(last, reply.ByteSize())
        self.reply = reply
        self.answered_index, self.answered_action = answered

    def attach(self, turn_index: int, action: str, deliver: Deliver) -> None:
        """Wait for the step in flight as well; RefusedError unless it is the very same step."""
        if turn_index != self.turn_index:
            raise self._turn_mismatch(turn_index)
        if action != self.action:
            raise self._action_mismatch(turn_index)
        self.deliveries.append(deliver)

    def repeat(self, turn_index: int, action: str) -> None:
        """Accept the repetition of the last answered step; RefusedError for every other step that is not next."""
        if turn_index == self.answered_index:
            if action != self.answered_action:
                raise self._action_mismatch(turn_index)
            return
        if self.is_final:
            raise self.over()
        raise self._turn_mismatch(turn_index)

    def apply(self, result: environment_pb2.StepResult, num_bytes: int) -> None:
        """Apply the step in flight: `result` is the worker's part and becomes the whole."""
        self.answered_index, self.answered_action = self.turn_index, self.action or ""
        self.turn_index += 1
        self.episode_return += result.reward
        result.turn_index = self.turn_index
        result.episode_return = self.episode_return
        if self.is_rebuilt:
            result.rebuilt, self.is_rebuilt = True, False
        self.num_crashes = 0
        self._set_last(result, num_bytes)

    def fail(self, reason: str, message: str) -> None:
        """End it as FAILED; a step in flight is answered with this, though it was never applied."""
        if self.action is not None:
            self.answered_index, self.answered_action = self.turn_index, self.action
        failure = environment_pb2.Failure(reason=reason, message=message)
        self._set_last(self._final(FAILED, failure=failure), len(message) + 256)

    def cut(self, cause: EndCause) -> None:
        """End it as TRUNCATED or ABORTED. The reply of the last step stays as it was given."""
        status = environment_pb2.EpisodeStatus.ValueType(cause.status.value)
        reply, reply_bytes = self.reply, self.reply_bytes
        self._set_last(self._final(status, end_cause=environment_pb2.EndCause.ValueType(cause.value)), reply_bytes)
        self.reply = reply

    def take_deliveries(self) -> list[Deliver]:
        """Everyone who waits for the step in flight; it is in flight no longer."""
        deliveries, self.deliveries, self.action = self.deliveries, [], None
        return deliveries

    def over(self) -> RefusedError:
        """Why an ended episode takes no further step."""
        status = environment_pb2.EpisodeStatus.Name(self.last.status).removeprefix("EPISODE_STATUS_")
        cause = environment_pb2.EndCause.Name(self.last.end_cause).removeprefix("END_CAUSE_")
        if cause == "LEASE_EXPIRED":
            return RefusedError(
                "LEASE_EXPIRED",
                f"episode {self.episode_id} was reaped: no call renewed its lease in time (env_server.lease_s);"
                " start a new one, and send KeepAlive while a task still owns it",
                setting="env_server.lease_s",
            )
        if self.last.failure.reason == "EPISODE_LOST":
            return RefusedError("EPISODE_LOST", f"episode {self.episode_id} is lost: {self.last.failure.message}")
        return RefusedError(
            "EPISODE_OVER",
            f"episode {self.episode_id} is over: {status}; start a new one",
            status=status,
            end_cause=cause if self.last.end_cause else None,
            turn_index=self.turn_index,
        )

    def _set_last(self, result: environment_pb2.StepResult, num_bytes: int) -> None:
        if self.is_final:
            raise RuntimeError(f"illegal transition {self.last.status} -> {result.status}")
        status = result.status
        if status == RUNNING and self.turn_index >= self.max_turns:
            status = result.status = TRUNCATED
            result.end_cause = TURN_LIMIT
        self.is_final = status != RUNNING
        self.last = self.reply = result
        self.reply_bytes = num_bytes

    def _final(
        self,
        status: environment_pb2.EpisodeStatus.ValueType,
        *,
        end_cause: environment_pb2.EndCause.ValueType = environment_pb2.END_CAUSE_UNSPECIFIED,
        failure: environment_pb2.Failure | None = None,
    ) -> environment_pb2.StepResult:
        result = environment_pb2.StepResult()
        result.CopyFrom(self.last)
        result.status, result.end_cause, result.turn_index = status, end_cause, self.turn_index
        result.ClearField("oracle_action")
        if failure is not None:
            result.failure.CopyFrom(failure)
            result.reward = 0.0
            result.observation = ""
        return result

    def _turn_mismatch(self, turn_index: int) -> RefusedError:
        return RefusedError(
            "TURN_MISMATCH",
            f"turn_index {turn_index} is not next: episode {self.episode_id} expects {self.turn_index}",
            expected_turn_index=self.turn_index,
            turn_index=turn_index,
        )

    def _action_mismatch(self, turn_index: int) -> RefusedError:
        return RefusedError(
            "ACTION_MISMATCH",
            f"turn {turn_index} of episode {self.episode_id} was taken with another action;"
            f" the next turn_index is {self.turn_index if self.action is None else self.turn_index + 1}",
            expected_turn_index=self.turn_index if self.action is None else self.turn_index + 1,
        )
