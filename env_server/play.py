"""One Play stream: many episodes of one client process, coalesced both ways.

Invariant: every call read is answered exactly once while the stream lives. Whatever is ready when a write ends goes out
as one message, cut before the message limit. The end of a stream ends no episode.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from env_server.access import Caller
from env_server.calls import Calls
from env_server.decoding import malformed
from env_server.episode import Answer, Episode
from env_server.refusals import RefusedError, to_call_error
from longturn.v1 import environment_pb2

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
REPLY_OVERHEAD = 64
"""Bytes of a reply beyond its result, at most."""
Reply = environment_pb2.PlayReply


class PlayContext(Protocol):
    """What a stream needs of gRPC's context."""

    async def read(self) -> bytes:
        """The next message, not decoded yet, or `grpc.aio.EOF`."""
        ...

    def peer(self) -> str:
        """Address of the client."""
        ...

    async def write(self, message: environment_pb2.PlayResponse) -> None:
        """Send a message; returns when gRPC has taken it."""
        ...


class PlayStream:
    """Serves one stream; `serve` returns when the client has said its last and all is answered."""

    def __init__(self, calls: Calls, caller: Caller, *, max_message_bytes: int, max_unanswered: int) -> None:
        self.caller = caller
        self._calls = calls
        self._max_message_bytes = max_message_bytes
        self._max_unanswered = max_unanswered
        self.owned_episode_ids: set[str] = set()
        """Episodes of the table that this stream owns."""
        self._results: deque[tuple[int, environment_pb2.StepResult, int]] = deque()
        self._replies: deque[Reply] = deque()
        self._num_unanswered = 0
        self._ready = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_closing = False
        self._refusal: RefusedError | None = None
        """Why the stream ends early."""
        self._tasks: asyncio.TaskGroup

    async def serve(self, context: PlayContext) -> None:
        """Read, run and answer calls until the client half-closes or `close` is called.

        Raises RefusedError if the client sends what is no message; what it sent before is answered.
        """
        try:
            async with asyncio.TaskGroup() as self._tasks:
                writer = self._tasks.create_task(self._write(context))
                reader = self._tasks.create_task(self._read(context))
                await asyncio.wait([writer, reader], return_when=asyncio.FIRST_COMPLETED)
                reader.cancel()
                self.close()
        finally:
            for episode_id in self.owned_episode_ids:
                self._calls.table.disown(episode_id, self)
        if self._refusal is not None:
            raise self._refusal

    def close(self) -> None:
        """End the stream once everything read so far is answered."""
        self._is_closing = True
        self._ready.set()

    def episode_moved(self, episode_id: str) -> None:
        """Another stream owns the episode now: say so."""
        self.owned_episode_ids.discard(episode_id)
        self._put(Reply(moved=environment_pb2.EpisodeMoved(episode_id=episode_id)))

    def episode_dropped(self, episode_id: str) -> None:
        """The server has forgotten the episode."""
        self.owned_episode_ids.discard(episode_id)

    async def _read(self, context: PlayContext) -> None:
        while (raw := await context.read()) is not EOF:
            try:
                request = environment_pb2.PlayRequest.FromString(raw)
            except DecodeError:
                self._refusal = malformed(environment_pb2.PlayRequest.DESCRIPTOR.full_name, context.peer())
                return
            for call in request.calls:
                self._num_unanswered += 1
                self._take(call)
            if self._num_unanswered > self._max_unanswered:
                self._has_room.clear()
                await self._has_room.wait()

    def _take(self, call: environment_pb2.PlayCall) -> None:
        call_id, kind = call.call_id, call.WhichOneof("call")
        try:
            if not call_id:
                raise RefusedError("BAD_REQUEST", "call_id must not be 0")
            if kind != "step":
                self._tasks.create_task(self._answer(call_id, self._run(kind, call)))
                return
            step = call.step
            episode = self._calls.authorise_step(step)
            if episode.owner is not self:
                self._adopt(episode)
            self._calls.table.step(episode, step.turn_index, step.action, partial(self._put_result, call_id))
        except RefusedError as refusal:
            self._put(Reply(call_id=call_id, error=to_call_error(refusal)))

    def _adopt(self, episode: Episode) -> None:
        """Own an episode that no stream owns; RefusedError(MOVED) if another one does."""
        if episode.owner is not None:
            raise RefusedError("MOVED", f"another stream owns episode {episode.episode_id}; attach to take it back")
        self._own(episode)

    def _own(self, episode: Episode) -> None:
        self._calls.table.own(episode, self)
        self.owned_episode_ids.add(episode.episode_id)

    async def _answer(self, call_id: int, call: Coroutine[object, object, Reply]) -> None:
        try:
            reply = await call
        except RefusedError as refusal:
            reply = Reply(error=to_call_error(refusal))
        reply.call_id = call_id
        self._put(reply)

    async def _run(self, kind: str | None, call: environment_pb2.PlayCall) -> Reply:
        match kind:
            case "start":
                episode, response = await self._calls.start(call.start, self.caller)
                self._own(episode)
                return Reply(start=response)
            case "end":
                return Reply(end=await self._calls.end(call.end))
            case "attach":
                self._own(self._calls.table.authorise(call.attach.episode_id, call.attach.episode_token))
                return Reply(attach=await self._calls.attach(call.attach))
            case "keep_alive":
                return Reply(keep_alive=self._calls.keep_alive(call.keep_alive))
            case "fork":
                episode, forked = await self._calls.fork(call.fork)
                self._own(episode)
                return Reply(fork=forked)
            case _:
                raise RefusedError("BAD_REQUEST", "the call names nothing to do, or something this server cannot")

    def _put_result(self, call_id: int, result: Answer, num_bytes: int) -> None:
        if isinstance(result, RefusedError):
            self._put(Reply(call_id=call_id, error=to_call_error(result)))
            return
        if num_bytes > self._calls.max_result_bytes:
            self._put(Reply(call_id=call_id, error=to_call_error(self._calls.too_large(num_bytes))))
            return
        if not self._results:
            self._ready.set()
        self._results.append((call_id, result, num_bytes))

    def _put(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._ready.set()

    async def _write(self, context: PlayContext) -> None:
        while not (self._is_closing and not self._num_unanswered and not self._replies):
            await self._ready.wait()
            self._ready.clear()
            while self._results or self._replies:
                await context.write(self._fill())
                if not self._has_room.is_set() and self._num_unanswered <= self._max_unanswered // 2:
                    self._has_room.set()

    def _fill(self) -> environment_pb2.PlayResponse:
        """As much of what is ready as one message may hold; at least one reply."""
        message = environment_pb2.PlayResponse()
        room = self._fill_results(message, self._max_message_bytes)
        while self._replies:
            room -= self._replies[0].ByteSize() + REPLY_OVERHEAD
            if room < 0 and message.replies:
                break
            reply = self._replies.popleft()
            message.replies.append(reply)
            self._num_unanswered -= reply.WhichOneof("reply") != "moved"
        return message

    def _fill_results(self, message: environment_pb2.PlayResponse, room: int) -> int:
        results, replies = self._results, message.replies
        while results:
            call_id, result, num_bytes = results[0]
            room -= num_bytes + REPLY_OVERHEAD
            if room < 0 and replies:
                break
            results.popleft()
            reply = replies.add()
            reply.call_id = call_id
            reply.step.CopyFrom(result)
            self._num_unanswered -= 1
        return room
