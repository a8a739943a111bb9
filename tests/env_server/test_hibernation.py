"""Episodes that nobody plays at the moment hold no memory in a worker."""

from __future__ import annotations

import asyncio

from longturn.v1 import environment_pb2
from tests.env_server.loopback import ODD, Client, Player, loopback, until

RUNNING = environment_pb2.EPISODE_STATUS_RUNNING


def awake(client: Client) -> int:
    """Episodes that live in a worker."""
    return sum(len(worker.keys) for worker in client.server.pool.workers)


def test_an_idle_episode_sleeps_and_its_next_step_wakes_it() -> None:
    async def main() -> None:
        async with loopback(hibernate_idle_s=0.3) as client:
            player = await client.start()
            for action in ("amber", "birch"):
                await player.step(action)
            await until(lambda: not awake(client))
            assert client.metrics.snapshot()["server/episode/num_hibernated"] == 1
            result = await player.step("cedar")
            twin = await client.start()
            for action in ("amber", "birch"):
                await twin.step(action)
            expected = await twin.step("cedar")
            assert (result.rebuilt, result.state_hash, result.status) == (True, expected.state_hash, RUNNING)
            assert result.episode_return == expected.episode_return

    asyncio.run(main())


def test_a_kept_lease_is_no_reason_to_stay_awake() -> None:
    async def main() -> None:
        async with loopback(hibernate_idle_s=0.3, lease_s=60.0) as client:
            player = await client.start()
            reference = environment_pb2.EpisodeReference(episode_id=player.episode_id, episode_token=player.token)
            request = environment_pb2.KeepAliveRequest(episodes=[reference])
            while awake(client):
                assert not (await client.stub.KeepAlive(request)).lost_episode_ids
                await asyncio.sleep(0.02)
            assert (await player.step()).turn_index == 1

    asyncio.run(main())


def test_no_more_episodes_are_awake_than_allowed_and_all_can_be_played() -> None:
    async def main() -> None:
        async with loopback(max_awake=4, num_workers=2) as client:
            players = [await client.start(index=index) for index in range(12)]
            assert awake(client) <= 4
            for turn_index in range(1, 4):
                for player in players:
                    result = await player.step()
                    assert (result.turn_index, result.status) == (turn_index, RUNNING)
                    assert awake(client) <= 4
            assert not (await players[-1].step()).rebuilt  # the last one that was played is still awake
            assert (await players[0].step()).rebuilt

    asyncio.run(main())


def test_more_steps_at_once_than_may_be_awake_are_all_answered() -> None:
    async def main() -> None:
        async with loopback(max_awake=2) as client:
            players = [await client.start(index=index) for index in range(20)]
            results = await asyncio.gather(*(player.step() for player in players))
            assert {result.turn_index for result in results} == {1}

    asyncio.run(main())


def test_what_cannot_be_replayed_and_what_is_being_played_stay_awake() -> None:
    async def main() -> None:
        async with loopback("echo", f"{ODD}:UnrepeatableEnvironment", hibernate_idle_s=0.2) as client:
            unrepeatable = await client.start("unrepeatable")
            busy = await client.start(knobs={"step_sleep_ms": 1000.0})
            idle = await client.start(index=1)
            running = asyncio.create_task(busy.step())
            await until(lambda: client.metrics.snapshot().get("server/episode/num_hibernated"))
            assert not (await running).rebuilt
            assert not (await unrepeatable.step()).rebuilt
            assert (await idle.step()).rebuilt

    asyncio.run(main())


def test_a_sleeping_episode_can_be_looked_at_forked_and_ended() -> None:
    async def main() -> None:
        async with loopback(hibernate_idle_s=0.2) as client:
            player = await client.start()
            last = await player.step("amber")
            await until(lambda: not awake(client))
            assert (await player.get()).last == last
            assert [turn.result for turn in (await player.get(with_transcript=True)).transcript] == [last]
            request = environment_pb2.ForkEpisodeRequest(
                request_id="f" * 32, episode_id=player.episode_id, episode_token=player.token, at_turn=1
            )
            fork = await client.stub.ForkEpisode(request)
            copy = Player(client.stub, fork.episode_id, fork.episode_token, fork.result, turn_index=1)
            assert (await copy.step("birch")).state_hash == (await player.step("birch")).state_hash
            assert (await player.end()).status == environment_pb2.EPISODE_STATUS_ABORTED

    asyncio.run(main())
