"""Faults seen in the field, by kind: clients that freeze, connections half open, pings swallowed, calls cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from longturn.v1 import environment_pb2, environment_pb2_grpc
from tests.env_server.loopback import Player, error_info, loopback, start_request, until
from tests.env_server.streams import playing

FROZEN_CLIENT = """
import sys, time, uuid, grpc
from longturn.v1 import environment_pb2 as pb, environment_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1])
stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
for index in range(int(sys.argv[2])):
    request = pb.StartEpisodeRequest(request_id=uuid.uuid4().hex)
    request.task.environment, request.task.task_id = "echo", f"echo/train/{index:06d}"
    stub.StartEpisode(request)
print("started", flush=True)
time.sleep(600)
"""
CONNECTION_PREFACE = 24
PING = 6


def test_frozen_clients_give_their_places_back_when_their_leases_end() -> None:
    async def main() -> None:
        async with loopback(max_episodes=6, lease_s=1.0) as client:
            command = [sys.executable, "-c", FROZEN_CLIENT, client.server.address, "3"]
            processes = [
                await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                for _ in range(2)
            ]
            try:
                for process in processes:
                    assert process.stdout is not None
                    assert await process.stdout.readline() == b"started\n"
                    process.send_signal(signal.SIGSTOP)
                await until(lambda: client.metrics.snapshot().get("server/episode/num_reaped") == 6)
                assert [await client.start(index=index) for index in range(6)]
            finally:
                for process in processes:
                    process.kill()
                    await process.wait()

    asyncio.run(main())


def test_half_open_connections_hold_no_episode_and_block_nobody() -> None:
    async def main() -> None:
        async with loopback(max_episodes=2, lease_s=0.5) as client:
            for index in range(2):
                await client.start(index=index)
            host, _, port = client.server.address.rpartition(":")
            half_open = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
            await until(lambda: client.metrics.snapshot().get("server/episode/num_reaped") == 2)
            assert (await (await client.start(index=3)).step()).turn_index == 1
            for _, writer in half_open:
                writer.close()

    asyncio.run(main())


@asynccontextmanager
async def proxied(address: str) -> AsyncIterator[tuple[str, list[int]]]:
    """A proxy that swallows HTTP/2 pings of both sides; its address, and the types of the frames that came by."""
    host, _, port = address.rpartition(":")
    frames: list[int] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, preface: int) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            writer.write(await reader.readexactly(preface))
            while True:
                header = await reader.readexactly(9)
                body = await reader.readexactly(int.from_bytes(header[:3]))
                frames.append(header[3])
                if header[3] != PING:
                    writer.write(header + body)
                    await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, far_writer, preface=CONNECTION_PREFACE), pump(far_reader, writer, preface=0))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", frames
    finally:
        server.close()


def test_a_long_step_survives_a_tunnel_that_swallows_pings() -> None:
    async def main() -> None:
        async with (
            loopback(keepalive_s=0.0) as client,
            proxied(client.server.address) as (address, frames),
            grpc.aio.insecure_channel(address) as channel,
        ):
            stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
            response = await stub.StartEpisode(start_request(knobs={"step_sleep_ms": 2500.0}))
            player = Player(stub, response.episode_id, response.episode_token, response.result)
            assert (await player.step()).turn_index == 1
            assert (await player.step()).turn_index == 2
            assert frames

    asyncio.run(main())


def test_an_episode_of_another_server_is_never_stepped_here() -> None:
    async def main() -> None:
        async with loopback() as first, loopback() as second:
            ours, theirs = await first.start(), await second.start()
            mixed = [
                (Player(first.stub, theirs.episode_id, theirs.token, theirs.first), "EPISODE_NOT_FOUND"),
                (Player(first.stub, ours.episode_id, theirs.token, theirs.first), "BAD_TOKEN"),
            ]
            for player, reason in mixed:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await player.step()
                assert error_info(caught.value).reason == reason
            assert (await ours.get()).turn_index == (await theirs.get()).turn_index == 0

    asyncio.run(main())


def test_a_thousand_calls_cancelled_at_random_leave_every_episode_in_order() -> None:
    dice = random.Random(7)

    async def play(player: Player, num_cancelled: int) -> None:
        """Cancel each step some of the time, and repeat it until it is answered."""
        for turn_index in range(num_cancelled):
            call = player.stub.Step(player.request("amber", turn_index))
            await asyncio.sleep(dice.random() * 0.01)
            call.cancel()
            assert (await player.step("amber", turn_index)).turn_index == turn_index + 1

    async def main() -> None:
        async with loopback(num_workers=2) as client:
            players = [await client.start(index=index) for index in range(50)]
            await asyncio.gather(*(play(player, 20) for player in players))
            twin = await client.start()
            for _ in range(20):
                last = await twin.step("amber")
            assert (await players[0].get()).last.state_hash == last.state_hash
            await until(lambda: not client.server.table.num_in_flight)

    asyncio.run(main())


def test_calls_that_arrive_twice_on_the_same_stream_are_applied_once() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as stream:
            request = start_request()
            started = await stream.send(*(environment_pb2.PlayCall(start=request) for _ in range(3)))
            replies = [(await stream.reply(call_id)).start for call_id in started]
            assert replies[0] == replies[1] == replies[2]
            player = Player(client.stub, replies[0].episode_id, replies[0].episode_token, replies[0].result)
            for turn_index in range(3):
                calls = [environment_pb2.PlayCall(step=player.request("amber", turn_index)) for _ in range(3)]
                results = [(await stream.reply(call_id)).step for call_id in await stream.send(*calls)]
                assert results[0] == results[1] == results[2]
                assert results[0].turn_index == turn_index + 1

    asyncio.run(main())
