"""A Play stream as a test sees it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from longturn.v1 import environment_pb2
from tests.env_server.loopback import Client, Player, start_request

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


class Stream:
    """Sends calls, one message each unless told otherwise, and finds their replies."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._ids = itertools.count(1)
        self._replies: dict[int, environment_pb2.PlayReply] = {}
        self.notices: list[environment_pb2.PlayReply] = []
        self.num_messages = 0

    async def send(self, *calls: environment_pb2.PlayCall) -> list[int]:
        """Send calls as one message; returns their ids."""
        for call in calls:
            call.call_id = next(self._ids)
        await self._call.write(environment_pb2.PlayRequest(calls=calls))
        return [call.call_id for call in calls]

    async def reply(self, call_id: int) -> environment_pb2.PlayReply:
        """The reply to a call."""
        while call_id not in self._replies:
            await self.read()
        return self._replies.pop(call_id)

    async def read(self) -> None:
        """Read one message."""
        message = await self._call.read()
        assert message is not EOF, await self._call.code()
        self.num_messages += 1
        for reply in message.replies:
            if not reply.call_id:
                self.notices.append(reply)
            else:
                assert reply.call_id not in self._replies
                self._replies[reply.call_id] = reply

    async def ask(self, **call: object) -> environment_pb2.PlayReply:
        """Send one call and wait for its reply."""
        (call_id,) = await self.send(environment_pb2.PlayCall(**call))  # type: ignore[arg-type]
        return await self.reply(call_id)

    async def start(self, client: Client, environment: str = "echo", index: int = 0, **options: object) -> Player:
        """Start an episode on this stream."""
        reply = await self.ask(start=start_request(environment, index, **options))  # type: ignore[arg-type]
        assert reply.WhichOneof("reply") == "start", reply
        return Player(client.stub, reply.start.episode_id, reply.start.episode_token, reply.start.result)

    async def finish(self) -> None:
        """Half-close and read what is left until the server ends the stream."""
        await self._call.done_writing()
        while (message := await self._call.read()) is not EOF:
            for reply in message.replies:
                self._replies[reply.call_id] = reply


@asynccontextmanager
async def playing(client: Client) -> AsyncIterator[Stream]:
    """An open stream; cancelled at the end."""
    call = client.stub.Play()
    try:
        yield Stream(call)
    finally:
        call.cancel()
