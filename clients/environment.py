"""Environments behind an address: list them, start episodes, step, end.

    async with EnvClient(EnvClientConfig(address="127.0.0.1:50051")) as envs:
        episode = await envs.start(Task(environment="textworld", task_id="..."), seed=7)
        result = episode.initial
        while not result.status.is_final:
            result = await episode.step(choose(result.observation))

All episodes of a client share one Play stream (`clients.play_stream`). A broken stream or a restarted server is
survived: episodes are attached again and unanswered steps are repeated under the same turn_index, exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Mapping
from types import TracebackType

import grpc

from clients.calls import Peer, error_from_call, error_from_rpc
from clients.catalog import EnvironmentInfo, ServerInfo, ServerLoad, TaskInfo, server_load_from_proto
from clients.config import EnvClientConfig
from clients.credentials import Credentials
from clients.episode import RemoteEpisode
from clients.lookup import Lookup
from clients.play_stream import OwnedEpisode, PlayCallType, PlayStream
from clients.server_addresses import new_client_id
from clients.shared_wait import SharedWait
from longturn.codec import end_cause_to_proto, step_result_from_proto, task_to_proto
from longturn.errors import CallRefusedError, ConfigError, EpisodeLostError, LongturnError
from longturn.records import EndCause, StepResult, Task
from longturn.status import StatusBoard
from longturn.v1 import environment_pb2, environment_pb2_grpc, status_pb2, status_pb2_grpc

logger = logging.getLogger(__name__)

_KEEP_ALIVE_PAGE = 5000


class EnvClient:
    """A connection to one env server. Use it as an async context manager; one event loop only."""

    def __init__(
        self,
        config: EnvClientConfig,
        *,
        board: StatusBoard | None = None,
        data_hashes: dict[str, str] | None = None,
    ) -> None:
        """`config` names one address. Clients that share `data_hashes` see to it that their servers' data agree."""
        self._config = config
        self._board = board
        self._peer = Peer(
            name="env_server", address=config.address, setting="env_server.address", command="longturn serve"
        )
        self._credentials = Credentials(config)
        self._client_id = config.client_id or new_client_id()
        self._refused_wait = SharedWait(board, "env_server", budget_s=config.refused_budget_s)
        self._data_hashes = dict(config.data_hashes) if data_hashes is None else data_hashes
        self._num_starting = 0
        self._background: list[asyncio.Task[None]] = []
        self._info: ServerInfo | None = None

    async def __aenter__(self) -> EnvClient:
        """Connect; raise UnreachableError once `connect_budget_s` is spent, ConfigError on a protocol mismatch."""
        self._channel = self._credentials.channel(_channel_options(self._config))
        self._stub = environment_pb2_grpc.EnvironmentServiceStub(self._channel)
        self._lookup = Lookup(
            self._stub, self._config, peer=self._peer, credentials=self._credentials, board=self._board
        )
        try:
            await self._connect()
        except BaseException:
            await self._channel.close()
            raise
        self._stream = PlayStream(
            connect=self._connect,
            open_stream=self._open_stream,
            peer=self._peer,
            max_message_bytes=min(self._config.max_message_bytes, self.server_info.max_message_bytes or 2**63),
            reattach_timeout_s=self._config.start_timeout_s,
        )
        self._stream.start()
        self._background = [asyncio.create_task(self._keep_alive(), name="keep-alive")]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._stream.close()
        await self._channel.close()

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._config.address

    @property
    def num_reconnects(self) -> int:
        """How often the stream had to be opened again."""
        return self._stream.num_reconnects

    @property
    def num_live(self) -> int:
        """Episodes that this client plays or is about to start."""
        return self._num_starting + self._stream.num_owned

    @property
    def server_info(self) -> ServerInfo:
        """Who answered last."""
        if self._info is None:
            raise RuntimeError("EnvClient is used outside its `async with`")
        return self._info

    async def load(self) -> ServerLoad:
        """How busy the server is, by one question; UnreachableError if it does not answer in `attempt_timeout_s`."""
        stub = status_pb2_grpc.StatusServiceStub(self._channel)
        request, timeout_s = status_pb2.GetStatusRequest(), self._config.attempt_timeout_s
        try:
            reply = await stub.GetStatus(request, timeout=timeout_s, metadata=self._credentials.metadata())
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self._peer) from error
        return server_load_from_proto(reply)

    async def list_environments(self) -> tuple[EnvironmentInfo, ...]:
        """The environments of the server, by name."""
        return await self._lookup.environments()

    async def environment(self, name: str) -> EnvironmentInfo:
        """One environment; raise CallRefusedError naming those that exist if there is none of this name."""
        return await self._lookup.environment(name)

    async def list_tasks(
        self, environment: str, split: str, *, filters: Mapping[str, str] | None = None, limit: int | None = None
    ) -> tuple[TaskInfo, ...]:
        """Tasks of a split in the server's order, at most `limit`."""
        return await self._lookup.tasks(environment, split, filters=filters or {}, limit=limit)

    async def start(
        self,
        task: Task,
        *,
        seed: int = 0,
        max_turns: int = 0,
        with_progress: bool = False,
        with_oracle: bool = False,
        patience_s: float | None = None,
    ) -> RemoteEpisode:
        """Start an episode; `max_turns` 0 takes the environment's limit.

        Waits `patience_s` for a free place, by default `refused_budget_s`. Raises CallRefusedError if the task is
        refused, ConfigError if the environment's data is not the pinned one.
        """
        request = environment_pb2.StartEpisodeRequest(
            request_id=secrets.token_hex(16),
            task=task_to_proto(task),
            seed=seed,
            max_turns=max_turns,
            with_progress=with_progress,
            with_oracle=with_oracle,
            client_id=self._client_id,
        )
        self._num_starting += 1
        try:
            reply = await self._start(environment_pb2.PlayCall(start=request), patience_s)
        finally:
            self._num_starting -= 1
        episode = self._started(reply.start)
        self._check_data(task.environment, episode)
        self._keep(episode)
        return episode

    async def attach(self, episode_id: str, episode_token: str) -> RemoteEpisode:
        """Take an episode over, from another process or an earlier life."""
        request = environment_pb2.AttachRequest(episode_id=episode_id, episode_token=episode_token)
        call = environment_pb2.PlayCall(attach=request)
        reply = (await self._ask(call, timeout_s=self._config.start_timeout_s)).attach
        last = step_result_from_proto(reply.last)
        episode = RemoteEpisode(self, episode_id=episode_id, episode_token=episode_token, last=last)
        self._keep(episode)
        return episode

    async def get(self, episode: RemoteEpisode) -> environment_pb2.GetEpisodeResponse:
        """The server's own account of an episode, with its transcript."""
        return await self._lookup.transcript(episode)

    async def step_episode(self, episode: RemoteEpisode, action: str) -> StepResult:
        """See `RemoteEpisode.step`."""
        call = environment_pb2.PlayCall(
            step=environment_pb2.StepRequest(
                episode_id=episode.episode_id,
                episode_token=episode.episode_token,
                turn_index=episode.turn_index,
                action=action if action.isascii() else _encodable(action),
            )
        )
        timeout_s = self._config.step_timeout_s
        try:
            reply = await self._stream.send(call, timeout_s=timeout_s, episode_id=episode.episode_id)
            if reply.WhichOneof("reply") == "error":
                reply = await self._repeat(call, reply, timeout_s=timeout_s, episode_id=episode.episode_id)
        except EpisodeLostError:
            self._stream.disown(episode.episode_id)
            raise
        result = step_result_from_proto(reply.step)
        if result.status.is_final:
            self._stream.disown(episode.episode_id)
        return result

    async def end_episode(self, episode: RemoteEpisode, cause: EndCause) -> StepResult:
        """See `RemoteEpisode.end`."""
        self._stream.disown(episode.episode_id)
        call = _end_call(episode, cause)
        # It waits for the step in flight, and so may take as long as one.
        reply = await self._ask(call, timeout_s=self._config.step_timeout_s, episode_id=episode.episode_id)
        return step_result_from_proto(reply.end.result)

    async def fork_episode(self, episode: RemoteEpisode, at_turn: int) -> RemoteEpisode:
        """See `RemoteEpisode.fork`."""
        request = environment_pb2.ForkEpisodeRequest(
            request_id=secrets.token_hex(16),
            episode_id=episode.episode_id,
            episode_token=episode.episode_token,
            at_turn=at_turn,
        )
        call = environment_pb2.PlayCall(fork=request)
        timeout_s = self._config.start_timeout_s
        forked = (await self._ask(call, timeout_s=timeout_s, episode_id=episode.episode_id)).fork
        copy = RemoteEpisode(
            self,
            episode_id=forked.episode_id,
            episode_token=forked.episode_token,
            last=step_result_from_proto(forked.result),
            environment_version=episode.environment_version,
            data_hash=episode.data_hash,
            max_turns=episode.max_turns,
        )
        self._keep(copy)
        return copy

    def abandon_episode(self, episode: RemoteEpisode, cause: EndCause) -> None:
        """See `RemoteEpisode.abandon`."""
        self._stream.disown(episode.episode_id)
        future = self._stream.send(_end_call(episode, cause), timeout_s=self._config.step_timeout_s)
        future.add_done_callback(_forget)

    async def _start(self, call: environment_pb2.PlayCall, patience_s: float | None) -> environment_pb2.PlayReply:
        timeout_s = self._config.start_timeout_s
        future = self._stream.send(call, timeout_s=timeout_s)
        try:
            reply = await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._end_unwanted)
            raise
        if reply.WhichOneof("reply") == "error":
            return await self._repeat(call, reply, timeout_s=timeout_s, episode_id="", budget_s=patience_s)
        return reply

    def _started(self, reply: environment_pb2.StartEpisodeResponse) -> RemoteEpisode:
        return RemoteEpisode(
            self,
            episode_id=reply.episode_id,
            episode_token=reply.episode_token,
            last=step_result_from_proto(reply.result),
            environment_version=reply.environment_version,
            data_hash=reply.data_hash,
            max_turns=reply.max_turns,
        )

    def _end_unwanted(self, future: asyncio.Future[environment_pb2.PlayReply]) -> None:
        """The task that asked for a start is gone: end the episode as soon as the server names it."""
        if future.cancelled() or future.exception() is not None or future.result().HasField("error"):
            return
        self.abandon_episode(self._started(future.result().start), EndCause.CLIENT_REQUEST)

    def _keep(self, episode: RemoteEpisode) -> None:
        if not episode.last.status.is_final:
            self._stream.own(episode)

    async def _ask(
        self, call: environment_pb2.PlayCall, *, timeout_s: float, episode_id: str = ""
    ) -> environment_pb2.PlayReply:
        reply = await self._stream.send(call, timeout_s=timeout_s, episode_id=episode_id)
        if reply.WhichOneof("reply") == "error":
            return await self._repeat(call, reply, timeout_s=timeout_s, episode_id=episode_id)
        return reply

    async def _repeat(
        self,
        call: environment_pb2.PlayCall,
        reply: environment_pb2.PlayReply,
        *,
        timeout_s: float,
        episode_id: str,
        budget_s: float | None = None,
    ) -> environment_pb2.PlayReply:
        """Repeat a call that was refused for now, as often as the server asks and the budget allows."""
        deadline_s = time.monotonic() + (self._config.refused_budget_s if budget_s is None else budget_s)
        first = error_from_call(reply.error)
        with self._refused_wait.waiting(f"{first.reason}: {first}"):
            while reply.WhichOneof("reply") == "error":
                error = error_from_call(reply.error)
                delay_s = retry_delay_s(error)
                if delay_s is None or time.monotonic() + delay_s > deadline_s:
                    raise error
                await asyncio.sleep(delay_s)
                again = environment_pb2.PlayCall()
                again.CopyFrom(call)
                reply = await self._stream.send(again, timeout_s=timeout_s, episode_id=episode_id)
        return reply

    async def _connect(self) -> None:
        self._info = await self._lookup.server_info()

    def _open_stream(self) -> PlayCallType:
        return self._stub.Play(metadata=self._credentials.metadata())

    def _check_data(self, environment: str, episode: RemoteEpisode) -> None:
        pinned = self._data_hashes.setdefault(environment, episode.data_hash)
        if pinned != episode.data_hash:
            self.abandon_episode(episode, EndCause.CLIENT_REQUEST)
            raise ConfigError(
                f"the data of environment {environment!r} at {self.address} changed: hash {episode.data_hash} instead "
                f"of {pinned}; serve the pinned data, or set env_server.data_hashes.{environment} and start a new run",
                reason="DATA_CHANGED",
            )

    async def _keep_alive(self) -> None:
        while self.server_info.lease_s > 0:
            await asyncio.sleep(self.server_info.lease_s / 3)
            episodes = self._stream.owned()
            for start in range(0, len(episodes), _KEEP_ALIVE_PAGE):
                await self._renew(episodes[start : start + _KEEP_ALIVE_PAGE])

    async def _renew(self, episodes: list[OwnedEpisode]) -> None:
        references = [
            environment_pb2.EpisodeReference(episode_id=episode.episode_id, episode_token=episode.episode_token)
            for episode in episodes
        ]
        call = environment_pb2.PlayCall(keep_alive=environment_pb2.KeepAliveRequest(episodes=references))
        try:
            reply = await self._ask(call, timeout_s=self._config.call_timeout_s)
        except LongturnError as error:
            logger.warning("leases were not renewed", extra={"reason": error.reason, "cause": str(error)})
            return
        if reply.keep_alive.lost_episode_ids:
            # Their owners hear it with their next step; episodes that ended meanwhile are among them.
            logger.info("episodes gone", extra={"num_episodes": len(reply.keep_alive.lost_episode_ids)})


def _end_call(episode: RemoteEpisode, cause: EndCause) -> environment_pb2.PlayCall:
    return environment_pb2.PlayCall(
        end=environment_pb2.EndEpisodeRequest(
            episode_id=episode.episode_id, episode_token=episode.episode_token, cause=end_cause_to_proto(cause)
        )
    )


def _encodable(action: str) -> str:
    """The action with lone surrogates, which UTF-8 cannot carry, as question marks."""
    return action.encode("utf-8", "replace").decode("utf-8")


def retry_delay_s(error: LongturnError) -> float | None:
    """How long to wait before the call is worth repeating, jittered; None: never."""
    if not isinstance(error, CallRefusedError) or error.retry_after_s is None:
        return None
    return error.retry_after_s * random.uniform(1.0, 1.5)


def _forget(future: asyncio.Future[environment_pb2.PlayReply]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.info("an abandoned episode was not ended", extra={"cause": str(error)})


def _channel_options(config: EnvClientConfig) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # A call made while the channel backs off fails at once: keep the pause below the client's own.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 300),
        # In gRPC this is the time that one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", 10_000),
        # Channels of one process to one address must not share a connection that another client broke.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if config.ping_interval_s:
        options.append(("grpc.keepalive_time_ms", int(config.ping_interval_s * 1000)))
        options.append(("grpc.http2.max_pings_without_data", 0))
    return options
