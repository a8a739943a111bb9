"""Who may call: bearer tokens and client certificates.

Invariant: no call but a health check reaches a service without valid credentials where any are demanded, and what is
proved goes before what a caller says of itself. No secret is logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health

from env_server.bearer_tokens import BearerTokens
from env_server.refusals import RefusedError, abort

logger = logging.getLogger(__name__)

OPEN_SERVICE = f"/{health.SERVICE_NAME}/"
"""Load balancers ask for health, and have no token."""
REREAD_S = 1.0
LOG_EVERY_S = 10.0
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as far as it is proved."""

    name: str = ""
    """From its certificate, else from its token; empty: nobody in particular."""
    credential: bytes | None = None
    """Digest of its bearer token."""


class Access:
    """Checks callers."""

    def __init__(self, tokens: BearerTokens) -> None:
        self._tokens = tokens
        self._num_refused = 0
        self._logged_at_s = -LOG_EVERY_S

    @property
    def demands_token(self) -> bool:
        """Whether calls need a bearer token."""
        return self._tokens.is_demanded

    def caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        """Who makes a call that was let in."""
        credential, name = self._of_token(context.invocation_metadata() or ()) or (None, "")
        return Caller(_certificate_name(context.auth_context()) or name, credential)

    def is_allowed(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether a call with this metadata may pass."""
        return not self._tokens.is_demanded or self._of_token(metadata) is not None

    def _of_token(self, metadata: Iterable[tuple[str, str | bytes]]) -> tuple[bytes, str] | None:
        if not self._tokens.is_demanded:
            return None
        for key, value in metadata:
            if key == "authorization" and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
                return self._tokens.find(value[len(_SCHEME) :].strip())
        return None

    def note_refusal(self, peer: str, method: str) -> None:
        """Log refusals, a line for many of them."""
        self._num_refused += 1
        now_s = time.monotonic()
        if now_s - self._logged_at_s >= LOG_EVERY_S:
            fields = {"num_calls": self._num_refused, "peer": peer, "method": method}
            logger.warning("calls without a valid bearer token are refused", extra=fields)
            self._logged_at_s, self._num_refused = now_s, 0

    async def reread_forever(self, on_change: Callable[[Callable[[Caller], bool]], None]) -> None:
        """Follow the token file; tell `on_change` which callers are still welcome. Runs until cancelled."""
        while True:
            await asyncio.sleep(REREAD_S)
            if self._tokens.reread():
                on_change(self._is_current)

    def _is_current(self, caller: Caller) -> bool:
        return caller.credential is None or self._tokens.is_current(caller.credential)


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the stubs leave its base untyped
    """Refuses calls without a valid token before any service sees them."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(  # pyright: ignore[reportIncompatibleMethodOverride]  # the stubs know no async one
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The service's own handler, or one that refuses."""
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICE) or self._access.is_allowed(handler_call_details.invocation_metadata):
            return await continuation(handler_call_details)

        async def refuse(request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            self._access.note_refusal(context.peer(), method)
            await abort(context, _unauthenticated())

        # A handler of streams answers calls of every kind, without waiting for a message.
        return grpc.stream_stream_rpc_method_handler(refuse)  # type: ignore[arg-type]


def _unauthenticated() -> RefusedError:
    return RefusedError(
        "UNAUTHENTICATED",
        "a valid bearer token is needed: send the metadata `authorization: Bearer TOKEN`"
        " (Longturn's clients: env_server.token_file)",
    )


def _certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """Common name of the client's certificate, else its first alternative name; empty without a certificate."""
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth_context.get(key, ()):
            if value:
                return value.decode(errors="backslashreplace")
    return ""
