"""How calls to the env server fail, wait and are tried again.

Both forms of a failure, a gRPC status with ErrorInfo and a CallError inside the stream, become the same errors of
`longturn.errors` here and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from longturn.errors import (
    CallRefusedError,
    EpisodeLostError,
    EpisodeMovedError,
    LongturnError,
    UnreachableError,
)
from longturn.status import StatusBoard
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOST_REASONS = frozenset({"EPISODE_LOST", "EPISODE_NOT_FOUND", "LEASE_EXPIRED"})
_AWAY_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
_STATUS_DETAILS_KEY = "grpc-status-details-bin"
_TLS_SIGNS = ("handshake", "ssl", "verification", "socket closed", "endpoint closing", "connection reset")
"""In gRPC's words for a connection that came about and was dropped again."""
_MALFORMED = "MALFORMED_STATUS"
DEADLINE_REASON = "DEADLINE_EXCEEDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between attempts: doubling from `first_s` to `most_s`, each drawn from its upper half."""

    first_s: float = 0.2
    most_s: float = 5.0

    def delay_s(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """How long to wait after failed attempt number `attempt`, from 1."""
        full_s = min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return full_s * (0.5 + 0.5 * draw())


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Whom we talk to, in the words an error needs."""

    name: str
    """As in status: env_server, engine, learner."""
    address: str
    setting: str
    """Setting that holds the address."""
    command: str
    """Command that starts it."""

    def unreachable(self, budget_s: float, cause: str) -> UnreachableError:
        """The error to raise when the budget is spent."""
        hint = ""
        if any(sign in cause.lower() for sign in _TLS_SIGNS):
            hint = "; something answers there: if one side speaks TLS and the other does not, see env_server.tls"
        return UnreachableError(
            f"{self.name} at {self.address} did not answer within {budget_s:g} s ({cause}); "
            f"start it with `{self.command}` or change {self.setting}{hint}"
        )


async def until_answered(
    attempt: Callable[[], Awaitable[T]],
    *,
    peer: Peer,
    budget_s: float,
    backoff: Backoff,
    board: StatusBoard | None = None,
) -> T:
    """Repeat `attempt` while it raises UnreachableError, at most `budget_s` long; log every failed attempt.

    Raises UnreachableError naming address and command once the budget is spent; other errors pass at once.
    """
    started_s = time.monotonic()
    number = 0
    with contextlib.ExitStack() as stack:
        while True:
            number += 1
            try:
                return await attempt()
            except UnreachableError as error:
                if number == 1 and board is not None:
                    reason = f"no answer at {peer.address}"
                    stack.enter_context(board.waiting(peer.name, reason, budget_s=budget_s))
                delay_s = backoff.delay_s(number)
                left_s = budget_s - (time.monotonic() - started_s)
                fields = {"address": peer.address, "attempt": number, "start_with": peer.command, "cause": str(error)}
                logger.warning("%s does not answer", peer.name, extra={**fields, "left_s": round(max(left_s, 0.0), 1)})
                if left_s <= delay_s:
                    raise peer.unreachable(budget_s, f"{number} attempts; {error}") from error
                await asyncio.sleep(delay_s)


def error_from_rpc(error: grpc.aio.AioRpcError, peer: Peer) -> LongturnError:
    """The error of a failed rpc. UnreachableError means that trying again may help."""
    details = error.details() or error.code().name
    if error.code() in _AWAY_CODES:
        return UnreachableError(f"{peer.name} at {peer.address}: {details}", reason=error.code().name)
    reason, metadata, retry_after_s = _details_of(error)
    return _refusal(reason or error.code().name, details, metadata, retry_after_s)


def error_from_call(error: environment_pb2.CallError) -> LongturnError:
    """The error of a call that failed inside the stream."""
    retry_after_s = error.retry_after.ToTimedelta().total_seconds() if error.HasField("retry_after") else None
    return _refusal(error.reason or "REFUSED", error.message, error.metadata, retry_after_s)


def _refusal(reason: str, message: str, metadata: Mapping[str, str], retry_after_s: float | None) -> LongturnError:
    if retry_after_s is None and reason in _LOST_REASONS:
        return EpisodeLostError(message, reason=reason)
    if reason == EpisodeMovedError.reason:
        return EpisodeMovedError(message, reason=reason)
    return CallRefusedError(message, reason=reason, metadata=metadata, retry_after_s=retry_after_s)


def _details_of(error: grpc.aio.AioRpcError) -> tuple[str, Mapping[str, str], float | None]:
    """Reason, metadata and retry time of a rich status; empty where the server sent none."""
    reason, metadata, retry_after_s = "", dict[str, str](), None
    for key, value in error.trailing_metadata() or ():
        if key != _STATUS_DETAILS_KEY or not isinstance(value, bytes):
            continue
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        try:
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    reason, metadata = info.reason, dict(info.metadata)
                elif detail.Unpack(retry):
                    retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
        except DecodeError as problem:
            fields = {"code": error.code().name, "details": error.details(), "problem": str(problem)}
            logger.warning("the rich status of a failed call cannot be decoded", extra=fields)
            return _MALFORMED, {}, None
    return reason, metadata, retry_after_s
