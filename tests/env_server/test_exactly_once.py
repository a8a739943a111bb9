"""A step is applied once, whoever asks how often."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from longturn.v1 import environment_pb2
from tests.env_server.loopback import FAULTY, ODD, error_info, loopback, start_request, until_in_flight


def test_steps_count_turns_and_sum_rewards() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"horizon": 3}, with_oracle=True)
            result = player.first
            while result.status == environment_pb2.EPISODE_STATUS_RUNNING:
                result = await player.step(result.oracle_action)
            assert (result.turn_index, result.success) == (3, True)
            assert result.episode_return == pytest.approx(1.0)
            assert result.status == environment_pb2.EPISODE_STATUS_TERMINATED

    asyncio.run(main())


def test_a_repeated_step_returns_the_stored_reply() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            first = await player.step("amber")
            assert await player.step("amber", turn_index=0) == first
            assert (await player.get()).turn_index == 1

    asyncio.run(main())


def test_the_last_step_of_an_episode_can_be_repeated_after_its_end() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"horizon": 1})
            last = await player.step("amber")
            assert last.status == environment_pb2.EPISODE_STATUS_TERMINATED
            assert await player.step("amber", turn_index=0) == last
            assert await player.end() == last
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await player.step("amber", turn_index=1)
            assert error_info(caught.value).reason == "EPISODE_OVER"

    asyncio.run(main())


def test_a_step_that_is_not_next_is_refused_with_the_expected_index() -> None:
    cases = [(1, "birch", "ACTION_MISMATCH"), (0, "amber", "TURN_MISMATCH"), (3, "amber", "TURN_MISMATCH")]

    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            await player.step("amber")
            await player.step("amber")
            for turn_index, action, reason in cases:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await player.step(action, turn_index=turn_index)
                info = error_info(caught.value)
                assert (info.reason, info.metadata["expected_turn_index"]) == (reason, "2")
                assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(main())


def test_a_repeat_attaches_to_the_step_in_flight() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"step_sleep_ms": 200.0})
            results = await asyncio.gather(*(player.step("amber", turn_index=0) for _ in range(5)))
            assert all(result == results[0] for result in results)
            assert (await player.get()).turn_index == 1

    asyncio.run(main())


def test_another_action_beside_the_step_in_flight_is_refused() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"step_sleep_ms": 300.0})
            running = player.stub.Step(player.request("amber"))
            other = player.stub.Step(player.request("birch"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await other
            assert error_info(caught.value).reason == "ACTION_MISMATCH"
            assert (await running).result.turn_index == 1

    asyncio.run(main())


def test_a_client_deadline_ends_only_its_waiting() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"step_sleep_ms": 400.0})
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await player.stub.Step(player.request("amber"), timeout=0.1)
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            result = await player.step("amber", turn_index=0)
            assert result.turn_index == 1
            assert (await player.get()).turn_index == 1

    asyncio.run(main())


def test_a_repeated_request_id_returns_the_same_episode() -> None:
    async def main() -> None:
        async with loopback() as client:
            request = start_request()
            first, second = await asyncio.gather(client.stub.StartEpisode(request), client.stub.StartEpisode(request))
            assert first == second
            assert await client.stub.StartEpisode(request) == first
            other = start_request(index=1, request_id=request.request_id)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stub.StartEpisode(other)
            assert error_info(caught.value).reason == "REQUEST_ID_REUSED"

    asyncio.run(main())


def test_a_start_goes_on_after_the_client_stopped_waiting() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client:
            request = start_request("faulty", knobs={"reset_sleep_ms": 300.0})
            with pytest.raises(grpc.aio.AioRpcError):
                await client.stub.StartEpisode(request, timeout=0.05)
            started = await client.stub.StartEpisode(request, timeout=30.0)
            assert started.result.turn_index == 0
            assert client.metrics.snapshot()["server/episode/num_started"] == 1

    asyncio.run(main())


def test_a_start_that_failed_may_be_tried_again_under_its_id() -> None:
    async def main() -> None:
        async with loopback(max_episodes=1) as client:
            player = await client.start()
            request = start_request(index=1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stub.StartEpisode(request)
            assert error_info(caught.value).reason == "TOO_MANY_EPISODES"
            await player.end()
            assert (await client.stub.StartEpisode(request)).episode_id

    asyncio.run(main())


def test_every_call_needs_the_token() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            player.token = ("y" if player.token[0] == "x" else "x") + player.token[1:]
            for call in (player.step(), player.get(), player.end()):
                await assert_refused(call, "BAD_TOKEN")
            reference = environment_pb2.EpisodeReference(episode_id=player.episode_id, episode_token=player.token)
            kept = await client.stub.KeepAlive(environment_pb2.KeepAliveRequest(episodes=[reference]))
            assert list(kept.lost_episode_ids) == [player.episode_id]
            player.episode_id = "no-such-episode"
            await assert_refused(player.step(), "EPISODE_NOT_FOUND")

    asyncio.run(main())


async def assert_refused(call: object, reason: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]  # any rpc
    assert error_info(caught.value).reason == reason


def test_a_transcript_holds_every_turn() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"horizon": 3})
            results = [await player.step(action) for action in ("amber", "birch", "cedar")]
            whole = await player.get(with_transcript=True)
            assert whole.initial == player.first
            assert [turn.action for turn in whole.transcript] == ["amber", "birch", "cedar"]
            assert [turn.result for turn in whole.transcript] == results
            assert whole.last == results[-1]

    asyncio.run(main())


def test_a_fork_is_independent_of_its_source() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            second = [await player.step(action) for action in ("amber", "birch", "cedar")][1]
            request = environment_pb2.ForkEpisodeRequest(
                request_id="f" * 32, episode_id=player.episode_id, episode_token=player.token, at_turn=2
            )
            fork = await client.stub.ForkEpisode(request)
            assert await client.stub.ForkEpisode(request) == fork
            assert (fork.result.turn_index, fork.result.state_hash) == (2, second.state_hash)
            step = environment_pb2.StepRequest(
                episode_id=fork.episode_id, episode_token=fork.episode_token, turn_index=2, action="cedar"
            )
            forked = (await client.stub.Step(step)).result
            assert forked.state_hash == (await player.get()).last.state_hash
            assert (await player.get()).turn_index == 3

    asyncio.run(main())


def test_an_end_keeps_the_status_of_an_episode_that_is_over() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            ended = await player.end(environment_pb2.END_CAUSE_TIME_LIMIT)
            assert ended.status == environment_pb2.EPISODE_STATUS_TRUNCATED
            assert await player.end(environment_pb2.END_CAUSE_STALENESS) == ended
            await assert_refused(
                (await client.start(index=1)).end(environment_pb2.END_CAUSE_TURN_LIMIT), "BAD_END_CAUSE"
            )

    asyncio.run(main())


def test_an_end_waits_for_the_step_in_flight() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"step_sleep_ms": 200.0})
            running = asyncio.create_task(player.step("amber"))
            await until_in_flight(client)
            ended = await player.end()
            assert (ended.turn_index, ended.status) == (1, environment_pb2.EPISODE_STATUS_ABORTED)
            assert (await running).status == environment_pb2.EPISODE_STATUS_RUNNING

    asyncio.run(main())


def test_an_episode_that_cannot_be_replayed_cannot_be_forked() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:UnrepeatableEnvironment") as client:
            player = await client.start("unrepeatable")
            request = environment_pb2.ForkEpisodeRequest(
                request_id="f" * 32, episode_id=player.episode_id, episode_token=player.token
            )
            await assert_refused(client.stub.ForkEpisode(request), "FORK_NOT_AVAILABLE")

    asyncio.run(main())


def test_calls_beyond_grpcs_default_limit_are_all_answered() -> None:
    async def main() -> None:
        async with loopback(num_workers=2) as client:
            players = await asyncio.gather(*(client.start(index=index) for index in range(1500)))
            results = await asyncio.gather(*(player.step() for player in players))
            assert {result.turn_index for result in results} == {1}

    asyncio.run(main())
