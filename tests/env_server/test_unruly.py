"""Environments that break their contract: only their own episode pays for it."""

from __future__ import annotations

import asyncio
import os
import signal

import grpc
import pytest

from longturn.v1 import environment_pb2
from tests.env_server.loopback import ODD, error_info, loopback

FAILED = environment_pb2.EPISODE_STATUS_FAILED


def test_an_environment_that_cannot_be_closed_leaves_its_neighbours_alone() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:UncloseableEnvironment") as client:
            (worker,) = client.server.pool.workers
            neighbour = await client.start("uncloseable", 1)
            player = await client.start("uncloseable")
            assert (await player.end()).end_cause == environment_pb2.END_CAUSE_CLIENT_REQUEST
            assert not (await neighbour.step()).rebuilt
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.start("uncloseable", task_id="uncloseable/train/amber")
            assert error_info(caught.value).reason == "TASK_NOT_FOUND"
            assert not (await neighbour.step()).rebuilt
            assert client.server.pool.workers == [worker]

    asyncio.run(main())


def test_a_malformed_answer_fails_its_episode_and_spares_the_worker() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:MalformedEnvironment") as client:
            neighbour = await client.start("malformed", 1)
            for action in ("nothing", "surrogate", "surrogate error", "oracle number", "oracle surrogate"):
                player = await client.start("malformed", with_oracle=True)
                failed = await player.step(action)
                assert (failed.status, failed.failure.reason) == (FAILED, "ENVIRONMENT_BROKEN"), action
            assert not (await neighbour.step()).rebuilt
            assert client.metrics.snapshot()["server/worker/num_restarts"] == 0

    asyncio.run(main())


def test_a_malformed_task_list_is_refused_and_spares_the_preparer() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:MalformedEnvironment") as client:
            request = environment_pb2.ListTasksRequest(environment="malformed", split="train")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stub.ListTasks(request, timeout=60.0)
            assert error_info(caught.value).reason == "ENVIRONMENT_BROKEN"

    asyncio.run(main())


def test_an_episode_that_cannot_be_replayed_is_not_rebuilt_before_its_lost_worker_is_buried() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:UnrepeatableEnvironment") as client:
            player = await client.start("unrepeatable")
            await player.step("amber")
            (worker,) = client.server.pool.workers
            os.kill(worker.pid, signal.SIGKILL)
            await worker.lost
            assert worker in client.server.pool.workers
            answered: asyncio.Future[environment_pb2.StepResult] = asyncio.get_running_loop().create_future()
            episode = client.server.table.episodes[player.episode_id]
            client.server.table.step(episode, 1, "birch", lambda result, _: answered.set_result(result))
            failed = await answered
            assert (failed.status, failed.failure.reason, failed.turn_index) == (FAILED, "EPISODE_LOST", 1)

    asyncio.run(main())
