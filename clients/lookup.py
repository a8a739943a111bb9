"""Questions to an env server that change nothing: who it is, what it offers, where an episode stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import grpc

from clients.calls import Backoff, Peer, error_from_rpc, until_answered
from clients.catalog import (
    EnvironmentInfo,
    ServerInfo,
    TaskInfo,
    environment_from_proto,
    server_info_from_proto,
    task_info_from_proto,
)
from clients.config import EnvClientConfig
from clients.credentials import Credentials
from clients.episode import RemoteEpisode
from longturn.errors import CallRefusedError, ConfigError
from longturn.protocol import ENVIRONMENT_PROTOCOL_VERSION
from longturn.status import StatusBoard
from longturn.v1 import environment_pb2, environment_pb2_grpc

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

_PAGE_SIZE = 1000


class Lookup:
    """Asks until somebody answers, within `connect_budget_s`, later `outage_budget_s`: repeats are harmless."""

    def __init__(
        self,
        stub: environment_pb2_grpc.EnvironmentServiceAsyncStub,
        config: EnvClientConfig,
        *,
        peer: Peer,
        credentials: Credentials,
        board: StatusBoard | None,
    ) -> None:
        self._stub = stub
        self._config = config
        self._peer = peer
        self._credentials = credentials
        self._board = board
        self._environments: dict[str, EnvironmentInfo] | None = None
        self._budget_s = config.connect_budget_s

    async def server_info(self) -> ServerInfo:
        """Who answers; raise ConfigError if it speaks another protocol."""
        request = environment_pb2.GetServerInfoRequest(protocol_version=ENVIRONMENT_PROTOCOL_VERSION)
        reply = await self._ask(self._stub.GetServerInfo, request, timeout_s=self._config.attempt_timeout_s)
        self._budget_s = self._config.outage_budget_s
        info = server_info_from_proto(reply)
        if info.protocol_version != ENVIRONMENT_PROTOCOL_VERSION:
            raise ConfigError(
                f"the env server at {self._peer.address} speaks protocol {info.protocol_version!r}, this client "
                f"{ENVIRONMENT_PROTOCOL_VERSION!r}; install the same longturn version on both sides",
                reason="PROTOCOL_MISMATCH",
            )
        return info

    async def environments(self) -> tuple[EnvironmentInfo, ...]:
        """The environments of the server, by name."""
        reply = await self._ask(self._stub.ListEnvironments, environment_pb2.ListEnvironmentsRequest())
        return tuple(environment_from_proto(message) for message in reply.environments)

    async def environment(self, name: str) -> EnvironmentInfo:
        """One environment; raise CallRefusedError naming those that exist if there is none of this name."""
        if self._environments is None:
            self._environments = {info.name: info for info in await self.environments()}
        if name not in self._environments:
            known = ", ".join(self._environments)
            raise CallRefusedError(f"no environment {name!r}; this server has {known}", reason="ENVIRONMENT_NOT_FOUND")
        return self._environments[name]

    async def tasks(
        self, environment: str, split: str, *, filters: Mapping[str, str], limit: int | None = None
    ) -> tuple[TaskInfo, ...]:
        """Tasks of a split in the server's order, at most `limit`."""
        tasks: list[TaskInfo] = []
        token = ""
        while limit is None or len(tasks) < limit:
            page_size = _PAGE_SIZE if limit is None else min(_PAGE_SIZE, limit - len(tasks))
            request = environment_pb2.ListTasksRequest(
                environment=environment, split=split, filters=filters, page_size=page_size, page_token=token
            )
            reply = await self._ask(self._stub.ListTasks, request)
            tasks.extend(task_info_from_proto(message) for message in reply.tasks)
            token = reply.next_page_token
            if not token:
                break
        return tuple(tasks[:limit])

    async def transcript(self, episode: RemoteEpisode) -> environment_pb2.GetEpisodeResponse:
        """The server's own account of an episode, all turns included."""
        request = environment_pb2.GetEpisodeRequest(
            episode_id=episode.episode_id, episode_token=episode.episode_token, with_transcript=True
        )
        return await self._ask(self._stub.GetEpisode, request)

    async def _ask(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_s: float | None = None,
    ) -> ResponseT:
        async def attempt() -> ResponseT:
            try:
                metadata = self._credentials.metadata()
                return await method(request, timeout=timeout_s or self._config.call_timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error, self._peer) from error

        return await until_answered(
            attempt,
            peer=self._peer,
            budget_s=self._budget_s,
            backoff=Backoff(),
            board=self._board,
        )
