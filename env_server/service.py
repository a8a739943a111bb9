"""EnvironmentService: one short method per rpc. Decode, call, encode; refusals become statuses in one place."""

# ruff: noqa: N802 - the methods have the names of the rpcs
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from env_server.access import Access, Caller
from env_server.batch import StepBatch
from env_server.calls import Calls
from env_server.episode import Answer
from env_server.listing import Listing
from env_server.play import PlayStream
from env_server.refusals import RefusedError, abort, refusing
from longturn.protocol import ENVIRONMENT_PROTOCOL_VERSION
from longturn.v1 import environment_pb2, environment_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class EnvironmentService(environment_pb2_grpc.EnvironmentServiceServicer):
    """Serves the calls of one server."""

    def __init__(
        self, calls: Calls, listing: Listing, info: environment_pb2.GetServerInfoResponse, *, access: Access
    ) -> None:
        self._calls = calls
        self._listing = listing
        self._info = info
        self._access = access
        self.streams: set[PlayStream] = set()

    @refusing
    async def GetServerInfo(
        self, request: environment_pb2.GetServerInfoRequest, context: Context
    ) -> environment_pb2.GetServerInfoResponse:
        """State who answers."""
        asked, ours = request.protocol_version, ENVIRONMENT_PROTOCOL_VERSION
        if asked and asked.partition(".")[0] != ours:
            raise RefusedError(
                "PROTOCOL_MISMATCH",
                f"the caller speaks protocol {asked}, this server speaks {ours}; install matching versions",
                protocol_version=ours,
            )
        return self._info

    @refusing
    async def ListEnvironments(
        self, request: environment_pb2.ListEnvironmentsRequest, context: Context
    ) -> environment_pb2.ListEnvironmentsResponse:
        """List the environments."""
        return self._listing.environments()

    @refusing
    async def ListTasks(
        self, request: environment_pb2.ListTasksRequest, context: Context
    ) -> environment_pb2.ListTasksResponse:
        """List a page of tasks."""
        return await self._listing.tasks(request)

    @refusing
    async def StartEpisode(
        self, request: environment_pb2.StartEpisodeRequest, context: Context
    ) -> environment_pb2.StartEpisodeResponse:
        """Start an episode."""
        _, response = await self._calls.start(request, self._access.caller(context))
        return response

    @refusing
    async def Step(self, request: environment_pb2.StepRequest, context: Context) -> environment_pb2.StepResponse:
        """Apply one action."""
        done: asyncio.Future[tuple[environment_pb2.StepResult, int]] = asyncio.get_running_loop().create_future()

        def deliver(result: Answer, num_bytes: int) -> None:
            if done.done():  # the client has stopped waiting
                return
            if isinstance(result, RefusedError):
                done.set_exception(result)
            else:
                done.set_result((result, num_bytes))

        episode = self._calls.authorise_step(request)
        self._calls.table.step(episode, request.turn_index, request.action, deliver)
        result, num_bytes = await done
        if num_bytes > self._calls.max_result_bytes:
            raise self._calls.too_large(num_bytes)
        return environment_pb2.StepResponse(result=result)

    @refusing
    async def StepBatch(
        self, request: environment_pb2.StepBatchRequest, context: Context
    ) -> environment_pb2.StepBatchResponse:
        """Apply one action to each of several episodes."""
        return await StepBatch(self._calls, request, max_message_bytes=self._calls.max_result_bytes).run()

    async def Play(  # type: ignore[override]  # reads and writes through its context, which gRPC allows
        self, request_iterator: object, context: Context
    ) -> None:
        """Carry many episodes."""
        stream = PlayStream(
            self._calls,
            self._access.caller(context),
            max_message_bytes=self._calls.max_result_bytes,
            max_unanswered=self._info.limits.max_requests_in_flight,
        )
        self.streams.add(stream)
        try:
            await stream.serve(context)
        except RefusedError as refusal:
            await abort(context, refusal)
        finally:
            self.streams.discard(stream)

    @refusing
    async def GetEpisode(
        self, request: environment_pb2.GetEpisodeRequest, context: Context
    ) -> environment_pb2.GetEpisodeResponse:
        """Say where an episode stands."""
        return await self._calls.get(request)

    @refusing
    async def ForkEpisode(
        self, request: environment_pb2.ForkEpisodeRequest, context: Context
    ) -> environment_pb2.ForkEpisodeResponse:
        """Start an episode from a turn of another one."""
        _, response = await self._calls.fork(request)
        return response

    @refusing
    async def KeepAlive(
        self, request: environment_pb2.KeepAliveRequest, context: Context
    ) -> environment_pb2.KeepAliveResponse:
        """Renew leases."""
        return self._calls.keep_alive(request)

    @refusing
    async def EndEpisode(
        self, request: environment_pb2.EndEpisodeRequest, context: Context
    ) -> environment_pb2.EndEpisodeResponse:
        """End an episode."""
        return await self._calls.end(request)

    def close_streams(self, is_welcome: Callable[[Caller], bool] = lambda caller: False) -> None:
        """End the streams of all callers but the welcome ones, once what they have read is answered."""
        for stream in self.streams:
            if not is_welcome(stream.caller):
                stream.close()
