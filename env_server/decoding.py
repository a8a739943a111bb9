"""Registers services so that a malformed message is a refusal of its call and a log line, not a traceback."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from env_server.refusals import RefusedError, abort

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Message, Context], Awaitable[Message] | Message]


def add_service(server: grpc.aio.Server, descriptor: ServiceDescriptor, servicer: object) -> None:
    """Serve all methods of a service. Those that take streams get undecoded messages from `context.read`."""
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in descriptor.methods}
    generic = grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
    server.add_generic_rpc_handlers((generic,))


def malformed(message_name: str, peer: str) -> RefusedError:
    """The refusal of a message that cannot be decoded; says so in the log as well."""
    logger.warning("malformed message", extra={"type": message_name, "peer": peer})
    return RefusedError("BAD_REQUEST", f"the message is not a valid {message_name}")


def _handler(method: Any, behaviour: Any) -> grpc.RpcMethodHandler[Any, Any]:
    response = GetMessageClass(method.output_type)
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(behaviour, response_serializer=response.SerializeToString)
    request = GetMessageClass(method.input_type)
    decoded = _decoding(request, cast(Behaviour, behaviour))
    return grpc.unary_unary_rpc_method_handler(decoded, response_serializer=response.SerializeToString)


def _decoding(request: type[Message], behaviour: Behaviour) -> Callable[[bytes, Context], Awaitable[Message]]:
    async def answer(raw: bytes, context: Context) -> Message:
        try:
            message = request.FromString(raw)
        except DecodeError:
            await abort(context, malformed(request.DESCRIPTOR.full_name, context.peer()))
        answered = behaviour(message, context)
        return await answered if inspect.isawaitable(answered) else answered

    return answer
