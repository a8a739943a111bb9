"""Episodes that nobody wants any more, and limits on those that somebody does."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from longturn.v1 import environment_pb2
from tests.env_server.loopback import Player, error_info, loopback, retry_delay_s, until_in_flight
from tests.env_server.streams import playing
from tests.support.waiting import until

ABORTED = environment_pb2.EPISODE_STATUS_ABORTED


def test_idle_episodes_are_reaped_counted_and_make_room() -> None:
    async def main() -> None:
        async with loopback(lease_s=0.3, max_episodes=8) as client:
            players = [await client.start(index=index) for index in range(8)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.start(index=9)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error_info(caught.value).metadata["setting"] == "env_server.max_episodes"
            assert retry_delay_s(caught.value) > 0
            await until(lambda: client.metrics.snapshot().get("server/episode/num_reaped") == 8)
            assert await client.start(index=9)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await players[0].step()
            assert error_info(caught.value).reason == "LEASE_EXPIRED"

    asyncio.run(main())


def test_an_open_stream_alone_renews_nothing_and_keep_alive_does() -> None:
    async def main() -> None:
        async with loopback(lease_s=2.0) as client, playing(client) as stream:
            kept, left = await stream.start(client), await stream.start(client, index=1)
            request = environment_pb2.KeepAliveRequest(episodes=[_reference(kept)])
            while client.metrics.snapshot().get("server/episode/num_reaped", 0) < 1:
                assert not (await stream.ask(keep_alive=request)).keep_alive.lost_episode_ids
                await asyncio.sleep(0.02)
            request.episodes.append(_reference(left))
            assert list((await stream.ask(keep_alive=request)).keep_alive.lost_episode_ids) == [left.episode_id]
            assert (await kept.step()).turn_index == 1

    asyncio.run(main())


def _reference(player: Player) -> environment_pb2.EpisodeReference:
    return environment_pb2.EpisodeReference(episode_id=player.episode_id, episode_token=player.token)


def test_a_step_in_flight_is_not_idle() -> None:
    async def main() -> None:
        async with loopback(lease_s=0.2) as client:
            player = await client.start(knobs={"step_sleep_ms": 1000.0})
            assert (await player.step()).turn_index == 1

    asyncio.run(main())


def test_the_life_of_an_episode_is_bounded() -> None:
    async def main() -> None:
        async with loopback(lease_s=2.0, max_episode_s=0.8) as client:
            player = await client.start(knobs={"horizon": 1_000_000}, max_turns=1_000_000)
            last = player.first
            while last.status == environment_pb2.EPISODE_STATUS_RUNNING:
                last = (await player.get()).last
                await asyncio.sleep(0.02)
            assert (last.status, last.end_cause) == (
                environment_pb2.EPISODE_STATUS_TRUNCATED,
                environment_pb2.END_CAUSE_MAX_EPISODE_TIME,
            )

    asyncio.run(main())


def test_a_clock_that_jumps_reaps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        # The grace makes the reaper look twenty times a second; no stall of the machine is as long as the lease.
        async with loopback(lease_s=60.0, final_grace_s=0.2) as client:
            player = await client.start()
            for offset_s in (86_400.0, -86_400.0):
                jumped = time.time() + offset_s
                monkeypatch.setattr(time, "time", lambda jumped=jumped: jumped)
                for _ in range(20):
                    await player.get()
                    await asyncio.sleep(0.01)
            assert (await player.step()).turn_index == 1

    asyncio.run(main())


def test_a_finished_episode_answers_for_a_while_and_is_then_dropped() -> None:
    async def main() -> None:
        async with loopback(final_grace_s=0.3) as client:
            player = await client.start()
            ended = await player.end()
            assert (await player.get()).last == ended
            await until(lambda: not client.server.table.episodes)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await player.get()
            assert error_info(caught.value).reason == "EPISODE_NOT_FOUND"

    asyncio.run(main())


def test_episodes_and_calls_are_limited_per_client_and_in_all() -> None:
    async def main() -> None:
        async with loopback(max_episodes_per_client=1, max_requests_in_flight=1) as client:
            player = await client.start(client_id="a", knobs={"step_sleep_ms": 300.0})
            other = await client.start(index=1, client_id="b")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.start(index=2, client_id="a")
            assert error_info(caught.value).metadata["setting"] == "env_server.max_episodes_per_client"
            running = asyncio.create_task(player.step())
            await until_in_flight(client)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await other.step()
            assert error_info(caught.value).reason == "TOO_MANY_REQUESTS"
            await running
            assert (await other.step()).turn_index == 1

    asyncio.run(main())
