"""Many steps in one unary call."""

from __future__ import annotations

import asyncio

from google.protobuf import duration_pb2

from longturn.v1 import environment_pb2
from tests.env_server.loopback import loopback

StepBatchRequest = environment_pb2.StepBatchRequest


def test_every_item_has_its_own_outcome() -> None:
    async def main() -> None:
        async with loopback() as client:
            players = [await client.start(index=index) for index in range(3)]
            steps = [players[0].request("amber"), players[1].request("amber", 5), players[2].request("amber")]
            items = (await client.stub.StepBatch(StepBatchRequest(steps=steps))).items
            assert [item.WhichOneof("outcome") for item in items] == ["result", "error", "result"]
            assert items[1].error.reason == "TURN_MISMATCH"

    asyncio.run(main())


def test_episodes_of_a_batch_end_each_by_itself_and_the_others_go_on() -> None:
    async def main() -> None:
        async with loopback() as client:
            players = [await client.start(index=turns, knobs={"horizon": turns}) for turns in (1, 2, 3)]
            for turn in range(3):
                playing = players[turn:]
                request = StepBatchRequest(steps=[player.request("amber", turn) for player in playing])
                results = [item.result for item in (await client.stub.StepBatch(request)).items]
                assert [result.turn_index for result in results] == [turn + 1] * len(playing)
                over = [result.status != environment_pb2.EPISODE_STATUS_RUNNING for result in results]
                assert over == [True] + [False] * (len(playing) - 1)
            tasks = [(await player.get()).task.task_id for player in players]
            assert tasks == [f"echo/train/{turns:06d}" for turns in (1, 2, 3)]

    asyncio.run(main())


def test_a_batch_is_answered_when_enough_are_ready_and_the_rest_is_kept() -> None:
    async def main() -> None:
        async with loopback() as client:
            slow = await client.start(knobs={"step_sleep_ms": 500.0})
            fast = await client.start(index=1)
            request = StepBatchRequest(steps=[slow.request("amber"), fast.request("amber")], min_ready=1)
            items = (await client.stub.StepBatch(request)).items
            assert (items[0].error.reason, items[1].result.turn_index) == ("STEP_PENDING", 1)
            request.min_ready = 2
            items = (await client.stub.StepBatch(request)).items
            assert [item.result.turn_index for item in items] == [1, 1]

    asyncio.run(main())


def test_a_batch_is_answered_at_its_deadline() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"step_sleep_ms": 1000.0})
            wait = duration_pb2.Duration(nanos=50_000_000)
            request = StepBatchRequest(steps=[player.request("amber")], max_wait=wait)
            assert (await client.stub.StepBatch(request)).items[0].error.reason == "STEP_PENDING"
            request.ClearField("max_wait")
            assert (await client.stub.StepBatch(request)).items[0].result.turn_index == 1

    asyncio.run(main())


def test_an_empty_batch_has_an_empty_answer() -> None:
    async def main() -> None:
        async with loopback() as client:
            assert not (await client.stub.StepBatch(StepBatchRequest())).items

    asyncio.run(main())


def test_items_beyond_the_message_limit_are_pending_and_repeatable() -> None:
    async def main() -> None:
        async with loopback(max_message_bytes=100_000) as client:
            players = [await client.start(index=index, knobs={"observation_bytes": 60_000}) for index in range(2)]
            request = StepBatchRequest(steps=[player.request("amber") for player in players])
            items = (await client.stub.StepBatch(request)).items
            assert {item.WhichOneof("outcome") for item in items} == {"error", "result"}
            (pending,) = [index for index, item in enumerate(items) if item.HasField("error")]
            request = StepBatchRequest(steps=[request.steps[pending]])
            assert (await client.stub.StepBatch(request)).items[0].result.turn_index == 1

    asyncio.run(main())
