"""A gRPC proxy that delays, drops and duplicates calls, some of them long after they were answered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from longturn.v1 import environment_pb2

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
LONGEST_DELAY_S = 0.02
LONGEST_LATE_S = 0.2
Context = grpc.aio.ServicerContext[Any, Any]


class UnreliableProxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # the stubs leave its base untyped
    """Forwards unary calls and Play streams to one channel; `faults` counts what it did to them."""

    def __init__(self, channel: grpc.aio.Channel, *, seed: int, share: float) -> None:
        """`share` is the probability of each kind of fault per call; of a broken stream, per message, a quarter."""
        self._channel = channel
        self._dice = random.Random(seed)
        self._share = share
        self._background: set[asyncio.Task[Any]] = set()
        self.faults: Counter[str] = Counter()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for any method."""
        method = handler_call_details.method
        if method.endswith("/Play"):
            return grpc.stream_stream_rpc_method_handler(partial(self._play, method))
        return grpc.unary_unary_rpc_method_handler(partial(self._ask, method))

    def _happens(self, fault: str, share: float | None = None) -> bool:
        is_due = self._dice.random() < (self._share if share is None else share)
        self.faults[fault] += is_due
        return is_due

    async def _delay(self) -> None:
        if self._happens("delayed"):
            await asyncio.sleep(self._dice.random() * LONGEST_DELAY_S)

    async def _ask(self, method: str, raw: bytes, context: Context) -> bytes:
        await self._delay()
        if self._happens("dropped before"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped on the way there")
        call = self._channel.unary_unary(method)
        asked = [call(raw)]
        if self._happens("duplicated"):
            asked.append(call(raw))
        if self._happens("repeated late"):
            self._spawn(self._repeat_late(call, raw))
        outcomes: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        await self._delay()
        if self._happens("dropped after"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped on the way back")
        outcome = self._dice.choice(outcomes)
        if isinstance(outcome, grpc.aio.AioRpcError):
            await context.abort(outcome.code(), outcome.details() or "", tuple(outcome.trailing_metadata() or ()))
        return outcome

    async def _repeat_late(self, call: Any, raw: bytes) -> None:
        await asyncio.sleep(self._dice.random() * LONGEST_LATE_S)
        await call(raw).code()

    async def _play(self, method: str, _iterator: object, context: Context) -> None:
        far = self._channel.stream_stream(method)()
        writing = asyncio.Lock()
        pumps = [
            asyncio.create_task(self._pump_there(context, far, writing)),
            asyncio.create_task(self._pump_back(far, context)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke")
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            far.cancel()

    async def _pump_there(self, context: Context, far: Any, writing: asyncio.Lock) -> bool:
        """Forward requests; returns whether the stream is to break."""
        while (raw := await context.read()) is not EOF:
            await self._delay()
            if self._happens("broken", self._share / 4):
                return True
            request = environment_pb2.PlayRequest.FromString(raw)
            for call in list(request.calls):
                if self._happens("duplicated"):
                    request.calls.append(call)
                if self._happens("repeated late"):
                    self._spawn(self._write_late(far, call, writing))
            async with writing:
                await far.write(request.SerializeToString())
        await far.done_writing()
        await asyncio.get_running_loop().create_future()
        return False

    async def _write_late(self, far: Any, call: environment_pb2.PlayCall, writing: asyncio.Lock) -> None:
        await asyncio.sleep(self._dice.random() * LONGEST_LATE_S)
        if not far.done():
            try:
                async with writing:
                    await far.write(environment_pb2.PlayRequest(calls=[call]).SerializeToString())
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self.faults["late ones lost with their stream"] += 1

    async def _pump_back(self, far: Any, context: Context) -> bool:
        """Forward replies; returns whether the stream is to break."""
        while (raw := await far.read()) is not EOF:
            await self._delay()
            if self._happens("broken", self._share / 4):
                return True
            await context.write(raw)
        return False

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Wait for what is still to be repeated."""
        await asyncio.gather(*self._background)


@asynccontextmanager
async def unreliable(address: str, *, seed: int, share: float) -> AsyncIterator[tuple[str, UnreliableProxy]]:
    """A proxy in front of a server, and the proxy's address."""
    async with grpc.aio.insecure_channel(address) as channel:
        proxy = UnreliableProxy(channel, seed=seed, share=share)
        server = grpc.aio.server(handlers=[proxy])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}", proxy
            await proxy.close()
        finally:
            await server.stop(None)
