"""The one table of errors: what the server refuses, with which gRPC code, and how a refusal looks on either road.

A unary call gets a gRPC status with ErrorInfo and RetryInfo; the same facts travel as CallError in streams and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from longturn.v1 import environment_pb2

DOMAIN = "longturn"
MAX_MESSAGE, MAX_FACT = 2000, 200
"""Most characters of a refusal's message and of each of its facts: gRPC carries them in headers, which are limited."""

CODE_BY_REASON: dict[str, grpc.StatusCode] = {
    "ACTION_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "BAD_END_CAUSE": grpc.StatusCode.INVALID_ARGUMENT,
    "BAD_KNOB": grpc.StatusCode.INVALID_ARGUMENT,
    "BAD_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "BAD_TOKEN": grpc.StatusCode.PERMISSION_DENIED,
    "ENVIRONMENT_BROKEN": grpc.StatusCode.INTERNAL,
    "ENVIRONMENT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "EPISODE_LOST": grpc.StatusCode.DATA_LOSS,
    "EPISODE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "EPISODE_OVER": grpc.StatusCode.FAILED_PRECONDITION,
    "FORK_NOT_AVAILABLE": grpc.StatusCode.UNIMPLEMENTED,
    "LEASE_EXPIRED": grpc.StatusCode.FAILED_PRECONDITION,
    "MESSAGE_TOO_LARGE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "MOVED": grpc.StatusCode.FAILED_PRECONDITION,
    "NO_WORKER": grpc.StatusCode.UNAVAILABLE,
    "PRIVILEGED_FORBIDDEN": grpc.StatusCode.PERMISSION_DENIED,
    "PROTOCOL_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "RATE_LIMITED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "REQUEST_ID_REUSED": grpc.StatusCode.ALREADY_EXISTS,
    "SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE,
    "SPLIT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "START_TIMEOUT": grpc.StatusCode.INTERNAL,
    "STATE_DIR_UNWRITABLE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "STEP_PENDING": grpc.StatusCode.UNAVAILABLE,
    "TASK_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TASK_QUARANTINED": grpc.StatusCode.FAILED_PRECONDITION,
    "TOO_MANY_EPISODES": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_REQUESTS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TURN_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "WORKER_CRASHED": grpc.StatusCode.INTERNAL,
}


class RefusedError(Exception):
    """A call that is answered by an error; `reason` is a key of CODE_BY_REASON."""

    def __init__(self, reason: str, message: str, *, retry_after_s: float | None = None, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = CODE_BY_REASON[reason]
        self.message = _shortened(message, MAX_MESSAGE)
        self.retry_after_s = retry_after_s
        facts = {name: str(value) for name, value in metadata.items() if value is not None}
        self.metadata = {name: _shortened(value, MAX_FACT) for name, value in facts.items()}


def _shortened(text: str, most: int) -> str:
    """The text; what is too long loses its middle, which a caller may have sent by the megabyte."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} [...] {text[-half:]}"


def to_call_error(refusal: RefusedError) -> environment_pb2.CallError:
    """The refusal as one item of a stream or batch."""
    error = environment_pb2.CallError(
        code=_number(refusal.code), reason=refusal.reason, message=refusal.message, metadata=refusal.metadata
    )
    if refusal.retry_after_s is not None:
        error.retry_after.CopyFrom(_duration(refusal.retry_after_s))
    return error


def to_status(refusal: RefusedError) -> status_pb2.Status:
    """The refusal as a status with google.rpc details."""
    info = error_details_pb2.ErrorInfo(reason=refusal.reason, domain=DOMAIN, metadata=refusal.metadata)
    details = [_pack(info)]
    if refusal.retry_after_s is not None:
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=_duration(refusal.retry_after_s))))
    return status_pb2.Status(code=_number(refusal.code), message=refusal.message, details=details)


async def abort(context: grpc.aio.ServicerContext[Any, Any], refusal: RefusedError) -> NoReturn:
    """End a unary call with the refusal."""
    status = rpc_status.to_status(to_status(refusal))
    await context.abort(status.code, status.details, status.trailing_metadata)


P = ParamSpec("P")
ResponseT = TypeVar("ResponseT")


def refusing(method: Callable[P, Coroutine[Any, Any, ResponseT]]) -> Callable[P, Coroutine[Any, Any, ResponseT]]:
    """Let a unary rpc method, (self, request, context), raise RefusedError."""

    @wraps(method)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> ResponseT:
        try:
            return await method(*args, **kwargs)
        except RefusedError as refusal:
            _, _, context = args
            await abort(cast("grpc.aio.ServicerContext[Any, Any]", context), refusal)

    return answer


def _number(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number


def _pack(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _duration(seconds: float) -> duration_pb2.Duration:
    nanos = round(seconds * 1e9)
    return duration_pb2.Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
