"""One Play stream that carries all episodes of this process.

Invariant: every call is answered exactly once: by its reply, by its deadline, or by the end of the reconnect budget. A
call lives through any number of streams: after a reconnect its episode is attached first and then the call is sent
again as it was, with the same turn_index or request_id, so that the server applies it once.

One writer sends whatever is ready when the last write ended; one reader completes futures from a table; one sweep looks
for missed deadlines. There is no task and no timer per call: a turn costs this process tens of microseconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import grpc

from clients.calls import DEADLINE_REASON, Peer, error_from_call, error_from_rpc
from longturn.errors import CallRefusedError, EpisodeMovedError, LongturnError, UnreachableError
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)

_SWEEP_S = 0.1
_MAX_CALLS_PER_MESSAGE = 2048
_MIN_STREAM_S = 0.5
_LASTING_CODES = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_RAISE_LIMITS = "raise env_server.max_message_bytes at the client and max_message_bytes at the server, both"

PlayCallType = grpc.aio.StreamStreamCall[environment_pb2.PlayRequest, environment_pb2.PlayResponse]


class OwnedEpisode(Protocol):
    """What the stream must know of an episode to take it over again."""

    episode_id: str
    episode_token: str


class _Waiting:
    """A call that has no answer yet."""

    __slots__ = ("call", "deadline_s", "episode_id", "future", "timeout_s")

    def __init__(
        self,
        call: environment_pb2.PlayCall,
        future: asyncio.Future[environment_pb2.PlayReply],
        timeout_s: float,
        deadline_s: float,
        episode_id: str,
    ) -> None:
        self.call = call
        self.future = future
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.episode_id = episode_id


class PlayStream:
    """Sends calls and hands out replies, over as many streams as it takes."""

    def __init__(
        self,
        *,
        connect: Callable[[], Awaitable[None]],
        open_stream: Callable[[], PlayCallType],
        peer: Peer,
        max_message_bytes: int,
        reattach_timeout_s: float,
    ) -> None:
        """`connect` returns when the server answers, or raises; `open_stream` starts a Play call."""
        self._connect = connect
        self._open_stream = open_stream
        self._peer = peer
        self._max_message_bytes = max_message_bytes
        self._reattach_timeout_s = reattach_timeout_s
        self._waiting: dict[int, _Waiting] = {}
        self._episodes: weakref.WeakValueDictionary[str, OwnedEpisode] = weakref.WeakValueDictionary()
        self._outbox: list[environment_pb2.PlayCall] = []
        self._parked: dict[str, list[environment_pb2.PlayCall]] = {}
        self._wake = asyncio.Event()
        self._next_call_id = 1
        self._is_connected = False
        self._tasks: list[asyncio.Task[None]] = []
        self.num_reconnects = 0

    def start(self) -> None:
        """Begin; the first stream opens at once."""
        self._tasks = [
            asyncio.create_task(self._supervise(), name="play-stream"),
            asyncio.create_task(self._sweep(), name="play-deadlines"),
        ]

    async def close(self, *, flush_s: float = 1.0) -> None:
        """Let queued calls and their answers pass for `flush_s`, then end the stream and fail what still waits."""
        unanswered = [waiting.future for waiting in self._waiting.values() if not waiting.future.done()]
        if self._is_connected and unanswered:
            await asyncio.wait(unanswered, timeout=flush_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all(UnreachableError(f"the connection to {self._peer.address} was closed", reason="CLOSED"))

    def own(self, episode: OwnedEpisode) -> None:
        """Take `episode` over again after a reconnect, for as long as somebody holds the object."""
        self._episodes[episode.episode_id] = episode

    def disown(self, episode_id: str) -> None:
        """The episode is over."""
        self._episodes.pop(episode_id, None)

    @property
    def num_owned(self) -> int:
        """How many `owned` are."""
        return len(self._episodes)

    def owned(self) -> list[OwnedEpisode]:
        """Episodes that a running task still holds."""
        return list(self._episodes.values())

    def send(
        self, call: environment_pb2.PlayCall, *, timeout_s: float, episode_id: str = ""
    ) -> asyncio.Future[environment_pb2.PlayReply]:
        """Queue a call; the future gets its reply, or UnreachableError when its deadline passes."""
        future: asyncio.Future[environment_pb2.PlayReply] = asyncio.get_running_loop().create_future()
        call.call_id = self._next_call_id
        self._next_call_id += 1
        self._waiting[call.call_id] = _Waiting(call, future, timeout_s, time.monotonic() + timeout_s, episode_id)
        self._queue(call, episode_id)
        return future

    def _queue(self, call: environment_pb2.PlayCall, episode_id: str) -> None:
        parked = self._parked.get(episode_id) if self._parked else None
        if parked is not None:
            parked.append(call)
            return
        if self._is_connected:
            self._outbox.append(call)
        self._wake.set()

    async def _supervise(self) -> None:
        while True:
            try:
                await self._connect()
                opened_s = time.monotonic()
                await self._run_stream()
            except LongturnError as error:
                self._fail_all(error)
                # The next call starts a new budget: a server that comes back hours later is found again.
                self._wake.clear()
                await self._wake.wait()
                continue
            self.num_reconnects += 1
            # A server that accepts streams and drops them at once must not be asked in a tight loop.
            await asyncio.sleep(max(0.0, _MIN_STREAM_S - (time.monotonic() - opened_s)))

    async def _run_stream(self) -> None:
        """Serve one stream until it ends; raise what the next stream would only repeat."""
        stream = self._open_stream()
        writer = asyncio.create_task(self._write(stream), name="play-writer")
        self._is_connected = True
        self._resume()
        try:
            await self._read(stream)
            logger.warning("env server closed the stream", extra={"address": self._peer.address})
        except grpc.aio.AioRpcError as error:
            fields = {"address": self._peer.address, "code": error.code().name, "cause": error.details()}
            logger.warning("env server stream broke", extra=fields)
            if error.code() in _LASTING_CODES:
                raise self._lasting(error) from error
        finally:
            self._is_connected = False
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            stream.cancel()

    def _lasting(self, error: grpc.aio.AioRpcError) -> LongturnError:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            return error_from_rpc(error, self._peer)
        return CallRefusedError(f"{error.details()}; {_RAISE_LIMITS}", reason="MESSAGE_TOO_LARGE")

    async def _write(self, stream: PlayCallType) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            calls, self._outbox = self._outbox, []
            for message in self._messages(calls):
                try:
                    await stream.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # The reader of the same stream reports why; the calls are sent again on the next one.

    def _messages(self, calls: list[environment_pb2.PlayCall]) -> Iterable[environment_pb2.PlayRequest]:
        budget = self._max_message_bytes // 2
        batch: list[environment_pb2.PlayCall] = []
        size = 0
        for call in calls:
            num_bytes = call.ByteSize()
            if num_bytes > budget:
                self._refuse_long(call, num_bytes)
                continue
            if batch and (size + num_bytes > budget or len(batch) >= _MAX_CALLS_PER_MESSAGE):
                yield environment_pb2.PlayRequest(calls=batch)
                batch, size = [], 0
            batch.append(call)
            size += num_bytes
        if batch:
            yield environment_pb2.PlayRequest(calls=batch)

    def _refuse_long(self, call: environment_pb2.PlayCall, num_bytes: int) -> None:
        waiting = self._waiting.pop(call.call_id, None)
        if waiting is None or waiting.future.done():
            return
        message = f"a call of {num_bytes} bytes exceeds half of {self._max_message_bytes} bytes; {_RAISE_LIMITS}"
        waiting.future.set_exception(CallRefusedError(message, reason="MESSAGE_TOO_LARGE"))

    async def _read(self, stream: PlayCallType) -> None:
        waiting_calls = self._waiting
        while True:
            message = await stream.read()
            if not isinstance(message, environment_pb2.PlayResponse):
                return  # The end of the stream.
            for reply in message.replies:
                waiting = waiting_calls.pop(reply.call_id, None)
                if waiting is None:
                    self._notice(reply)
                elif not waiting.future.done():
                    waiting.future.set_result(reply)

    def _notice(self, reply: environment_pb2.PlayReply) -> None:
        # A reply whose call missed its deadline also ends here; the server keeps it for a repeat.
        if reply.WhichOneof("reply") != "moved":
            return
        episode_id = reply.moved.episode_id
        self.disown(episode_id)
        self._fail_episode(episode_id, EpisodeMovedError(f"another stream took episode {episode_id} over"))

    def _resume(self) -> None:
        """Queue everything that has no answer on a fresh stream, episodes first."""
        self._outbox.clear()
        self._parked = {episode.episode_id: [] for episode in self.owned()}
        now_s = time.monotonic()
        for call_id, waiting in list(self._waiting.items()):
            if waiting.future.done():
                del self._waiting[call_id]
                continue
            waiting.deadline_s = now_s + waiting.timeout_s
            self._queue(waiting.call, waiting.episode_id)
        for episode in self.owned():
            self._attach_again(episode)

    def _attach_again(self, episode: OwnedEpisode) -> None:
        request = environment_pb2.AttachRequest(episode_id=episode.episode_id, episode_token=episode.episode_token)
        future = self.send(environment_pb2.PlayCall(attach=request), timeout_s=self._reattach_timeout_s)
        future.add_done_callback(lambda done: self._attached(episode.episode_id, done))

    def _attached(self, episode_id: str, done: asyncio.Future[environment_pb2.PlayReply]) -> None:
        error = done.exception()
        if error is None and done.result().HasField("error"):
            error = error_from_call(done.result().error)
        retry_after_s = error.retry_after_s if isinstance(error, CallRefusedError) else None
        if retry_after_s is not None and episode_id in self._parked:
            asyncio.get_running_loop().call_later(retry_after_s, self._attach_later, episode_id)
            return
        parked = self._parked.pop(episode_id, [])
        if error is not None:
            self.disown(episode_id)
            self._fail_episode(episode_id, error)
            return
        self._outbox.extend(call for call in parked if call.call_id in self._waiting)
        self._wake.set()

    def _attach_later(self, episode_id: str) -> None:
        episode = self._episodes.get(episode_id)
        if episode is not None and self._is_connected and episode_id in self._parked:
            self._attach_again(episode)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            if not self._is_connected:
                continue  # The reconnect budget counts now; deadlines start anew on the next stream.
            now_s = time.monotonic()
            late = [call_id for call_id, waiting in self._waiting.items() if waiting.deadline_s < now_s]
            for call_id in late:
                self._expire(self._waiting.pop(call_id))

    def _expire(self, waiting: _Waiting) -> None:
        if waiting.future.done():
            return
        kind = waiting.call.WhichOneof("call")
        message = (
            f"no answer to {kind} from {self._peer.address} within {waiting.timeout_s:g} s; "
            "raise env_server.step_timeout_s or env_server.start_timeout_s if the environment is slow"
        )
        waiting.future.set_exception(UnreachableError(message, reason=DEADLINE_REASON))

    def _fail_episode(self, episode_id: str, error: BaseException) -> None:
        for call_id, waiting in list(self._waiting.items()):
            if waiting.episode_id == episode_id:
                del self._waiting[call_id]
                if not waiting.future.done():
                    waiting.future.set_exception(error)

    def _fail_all(self, error: LongturnError) -> None:
        unanswered = list(self._waiting.values())
        self._waiting.clear()
        self._outbox.clear()
        self._parked.clear()
        for waiting in unanswered:
            if not waiting.future.done():
                waiting.future.set_exception(error)
