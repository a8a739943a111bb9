"""One stream, many episodes."""

from __future__ import annotations

import asyncio

from longturn.v1 import environment_pb2
from tests.env_server.loopback import Player, loopback, until_in_flight
from tests.env_server.streams import playing
from tests.support.waiting import until

PlayCall = environment_pb2.PlayCall


def test_many_episodes_share_a_stream_and_each_keeps_its_own_turns() -> None:
    async def main() -> None:
        async with loopback(num_workers=2) as client, playing(client) as stream:
            players = [await stream.start(client, index=index, knobs={"horizon": 4}) for index in range(40)]
            replies: list[environment_pb2.PlayReply] = []
            for turn in range(4):
                calls = [PlayCall(step=player.request("amber", turn)) for player in players]
                replies = [await stream.reply(call_id) for call_id in await stream.send(*calls)]
                assert {reply.step.turn_index for reply in replies} == {turn + 1}
            assert len({reply.step.state_hash for reply in replies}) == len(players)
            assert {reply.step.status for reply in replies} == {environment_pb2.EPISODE_STATUS_TERMINATED}

    asyncio.run(main())


def test_steps_that_are_ready_together_travel_together() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as stream:
            players = [await stream.start(client, index=index) for index in range(64)]
            before = 0
            for turn in range(2):  # an episode's first step measures whether its steps are worth a thread
                before = stream.num_messages
                calls = [PlayCall(step=player.request("amber", turn)) for player in players]
                for call_id in await stream.send(*calls):
                    await stream.reply(call_id)
            assert stream.num_messages - before < 32

    asyncio.run(main())


def test_a_slow_episode_does_not_hold_a_fast_one() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as stream:
            slow = await stream.start(client, knobs={"step_sleep_ms": 2000.0})
            fast = await stream.start(client, index=1)
            (waiting,) = await stream.send(PlayCall(step=slow.request("amber")))
            for turn in range(5):
                assert (await stream.ask(step=fast.request("amber", turn))).step.turn_index == turn + 1
            assert (await stream.reply(waiting)).step.turn_index == 1

    asyncio.run(main())


def test_a_refused_call_names_code_reason_and_facts() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as stream:
            player = await stream.start(client)
            error = (await stream.ask(step=player.request("amber", 7))).error
            assert (error.code, error.reason) == (9, "TURN_MISMATCH")
            assert error.metadata["expected_turn_index"] == "0"
            assert (await stream.ask()).error.reason == "BAD_REQUEST"
            assert (await stream.ask(step=player.request("amber", 0))).step.turn_index == 1

    asyncio.run(main())


def test_the_newest_stream_owns_the_episode_and_the_older_is_told() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as older, playing(client) as newer:
            player = await older.start(client)
            assert (await newer.ask(step=player.request("amber"))).error.reason == "MOVED"
            attached = await newer.ask(attach=_attach(player))
            assert attached.attach.turn_index == 0
            await older.read()
            assert [notice.moved.episode_id for notice in older.notices] == [player.episode_id]
            assert (await newer.ask(step=player.request("amber"))).step.turn_index == 1
            assert (await older.ask(step=player.request("amber", 1))).error.reason == "MOVED"

    asyncio.run(main())


def _attach(player: Player) -> environment_pb2.AttachRequest:
    return environment_pb2.AttachRequest(episode_id=player.episode_id, episode_token=player.token)


def test_a_reconnected_client_gets_the_reply_it_missed() -> None:
    async def main() -> None:
        async with loopback() as client:
            async with playing(client) as lost:
                player = await lost.start(client, knobs={"step_sleep_ms": 200.0})
                await lost.send(PlayCall(step=player.request("amber")))
                await until_in_flight(client)
            async with playing(client) as stream:
                await stream.ask(attach=_attach(player))
                reply = await stream.ask(step=player.request("amber", 0))
                assert reply.step.turn_index == 1
                assert (await player.get()).turn_index == 1

    asyncio.run(main())


def test_a_half_closed_stream_ends_when_all_is_answered() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as stream:
            player = await stream.start(client, knobs={"step_sleep_ms": 200.0})
            (call_id,) = await stream.send(PlayCall(step=player.request("amber")))
            await stream.finish()
            assert (await stream.reply(call_id)).step.turn_index == 1

    asyncio.run(main())


def test_end_keep_alive_and_fork_travel_on_the_stream() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as stream:
            player = await stream.start(client)
            reference = environment_pb2.EpisodeReference(episode_id=player.episode_id, episode_token=player.token)
            kept = await stream.ask(keep_alive=environment_pb2.KeepAliveRequest(episodes=[reference]))
            assert not kept.keep_alive.lost_episode_ids
            forked = await stream.ask(
                fork=environment_pb2.ForkEpisodeRequest(
                    request_id="f" * 32, episode_id=player.episode_id, episode_token=player.token
                )
            )
            assert forked.fork.result.turn_index == 0
            end = environment_pb2.EndEpisodeRequest(
                episode_id=player.episode_id, episode_token=player.token, cause=environment_pb2.END_CAUSE_STALENESS
            )
            ended = (await stream.ask(end=end)).end.result
            assert ended.end_cause == environment_pb2.END_CAUSE_STALENESS
            kept = await stream.ask(keep_alive=environment_pb2.KeepAliveRequest(episodes=[reference]))
            assert list(kept.keep_alive.lost_episode_ids) == [player.episode_id]

    asyncio.run(main())


def test_replies_are_cut_before_the_message_limit() -> None:
    async def main() -> None:
        async with loopback(max_message_bytes=100_000) as client, playing(client) as stream:
            knobs = {"observation_bytes": 40_000}
            players = [await stream.start(client, index=index, knobs=knobs) for index in range(10)]
            ids = await stream.send(*(PlayCall(step=player.request("amber")) for player in players))
            assert {(await stream.reply(call_id)).step.turn_index for call_id in ids} == {1}

    asyncio.run(main())


def test_a_drained_server_answers_its_streams_and_ends_them() -> None:
    async def main() -> None:
        async with loopback() as client, playing(client) as stream:
            player = await stream.start(client, knobs={"step_sleep_ms": 300.0})
            (call_id,) = await stream.send(PlayCall(step=player.request("amber")))
            await until_in_flight(client)
            draining = asyncio.create_task(client.server.drain(10.0))
            await stream.finish()
            assert (await stream.reply(call_id)).step.turn_index == 1
            await draining

    asyncio.run(main())


def test_a_client_that_vanishes_leaves_its_steps_going_and_its_episodes_free() -> None:
    async def main() -> None:
        async with loopback() as client:
            async with playing(client) as stream:
                players = [await stream.start(client, index=index, knobs={"step_sleep_ms": 50.0}) for index in range(8)]
                await stream.send(*(PlayCall(step=player.request("amber")) for player in players))
                await until_in_flight(client)
            for player in players:
                assert (await player.step("amber", turn_index=0)).turn_index == 1
            episodes = client.server.table.episodes.values()
            await until(lambda: all(episode.owner is None for episode in episodes))

    asyncio.run(main())


def test_a_stream_reads_on_after_it_was_full_though_one_call_may_be_in_flight() -> None:
    async def main() -> None:
        async with loopback(max_requests_in_flight=1) as client, playing(client) as stream:
            players = [await stream.start(client, index=index) for index in range(2)]
            ids = await stream.send(*(PlayCall(step=player.request("amber")) for player in players))
            replies = [await stream.reply(call_id) for call_id in ids]
            assert (replies[0].step.turn_index, replies[1].error.reason) == (1, "TOO_MANY_REQUESTS")
            assert (await stream.ask(step=players[1].request("amber"))).step.turn_index == 1

    asyncio.run(main())


def test_a_stream_forgets_its_episodes_when_the_server_does() -> None:
    async def main() -> None:
        async with loopback(final_grace_s=0.1) as client, playing(client) as stream:
            players = [await stream.start(client, index=index) for index in range(4)]
            for player in players[1:]:
                await player.end()
            await until(lambda: len(client.server.table.episodes) == 1)
            (served,) = client.server.service.streams
            assert served.owned_episode_ids == {players[0].episode_id}

    asyncio.run(main())
