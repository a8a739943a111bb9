"""Clients share the workers: nobody's flood is another's wait, and a task that hangs costs nobody else anything."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import pytest

from env_server.fair_queue import FairGate, FairQueue
from longturn.v1 import environment_pb2, status_pb2, status_pb2_grpc
from tests.env_server.loopback import FAULTY, ODD, Client, error_info, loopback, retry_delay_s, until, until_in_flight
from tests.env_server.streams import playing

FAILED = environment_pb2.EPISODE_STATUS_FAILED
QUICK = {"step_timeout_s": 0.6, "start_timeout_s": 0.6}


def test_a_fair_queue_takes_turns_between_clients_and_keeps_each_ones_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for client_id, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        queue.put(client_id, item)
    assert [queue.take() for _ in range(len(queue))] == [1, 4, 5, 2, 6, 3]
    with pytest.raises(IndexError):
        queue.take()


def test_a_fair_gate_lets_clients_in_by_turns() -> None:
    entered: list[str] = []

    async def main() -> None:
        gate = FairGate(1)

        async def visit(client_id: str) -> None:
            async with gate.hold(client_id):
                entered.append(client_id)
                await asyncio.sleep(0)

        async with gate.hold("first"):
            visits = [asyncio.create_task(visit(client_id)) for client_id in ("a", "a", "a", "b", "b")]
            await asyncio.sleep(0)
        await asyncio.wait(visits)
        assert entered == ["a", "b", "a", "b", "a"]

    asyncio.run(main())


def test_a_fair_gate_loses_no_place_to_who_stops_waiting() -> None:
    async def main() -> None:
        gate = FairGate(1)

        async def visit() -> None:
            async with gate.hold("a"):
                await asyncio.sleep(0)

        async with gate.hold("a"):
            waiting, given, last = (asyncio.create_task(visit()) for _ in range(3))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0)
        given.cancel()  # the place was just given to it
        async with asyncio.timeout(5.0):
            await asyncio.wait([waiting, given, last])
            assert given.cancelled()
            await visit()

    asyncio.run(main())


def test_a_flood_of_one_client_lets_another_through() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client, playing(client) as stream:
            knobs = {"step_sleep_ms": 100.0}
            flood = [await stream.start(client, "faulty", i, knobs=knobs, client_id="flood") for i in range(60)]
            single = await client.start("faulty", 99, client_id="single")
            # How much the worker is given ahead follows from how long its answers took; starts are quick.
            slow = await client.start("faulty", 98, knobs=knobs, client_id="flood")
            for _ in range(5):
                await slow.step()
            await stream.send(*(environment_pb2.PlayCall(step=player.request("amber")) for player in flood))
            await until_in_flight(client, 60)
            assert (await single.step()).turn_index == 1
            assert client.server.table.num_in_flight > 25

    asyncio.run(main())


def test_preparations_of_one_client_let_another_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)  # whoever prepares waits until somebody reads
    monkeypatch.setenv("PREPARED_LOG", str(log))
    names = [f"prepared/train/{index:06d}" for index in range(9)]

    async def main() -> None:
        async with loopback(f"{ODD}:PreparedEnvironment") as client:

            async def start(task_id: str, client_id: str) -> None:
                await client.start("prepared", task_id=task_id, client_id=client_id)

            starts = [asyncio.create_task(start(name, "flood")) for name in names[:8]]
            await until_in_flight(client, 8)
            starts.append(asyncio.create_task(start(names[8], "single")))
            await until_in_flight(client, 9)
            reader = os.open(log, os.O_RDWR)
            await asyncio.gather(*starts)
            prepared = [line.split()[1] for line in os.read(reader, 65_536).decode().splitlines()]
            os.close(reader)
            assert sorted(prepared) == names
            assert prepared.index(names[8]) == 2  # behind the one that had begun and the one whose turn it was

    asyncio.run(main())


def test_a_task_whose_steps_hang_twice_is_refused_and_listed() -> None:
    async def main() -> None:
        async with loopback(FAULTY, limits=QUICK) as client:
            hanging = {"hang_at_turn": 1}
            for _ in range(2):
                player = await client.start("faulty", knobs=hanging)
                assert (await player.step()).failure.reason == "STEP_TIMEOUT"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.start("faulty", knobs=hanging)
            assert error_info(caught.value).reason == "TASK_QUARANTINED"
            assert (await (await client.start("faulty")).step()).turn_index == 1  # the knob hung, not the task
            listed = 'faulty:faulty/train/000000{"hang_at_turn": 1}'
            while listed not in await _fact(client, "quarantined_tasks"):  # noqa: ASYNC110  # it has no event for us
                await asyncio.sleep(0.05)

    asyncio.run(main())


async def _fact(client: Client, name: str) -> str:
    async with grpc.aio.insecure_channel(client.server.address) as channel:
        status = await status_pb2_grpc.StatusServiceStub(channel).GetStatus(status_pb2.GetStatusRequest())
    return status.facts[name]


def test_a_worker_that_grew_too_large_is_replaced_and_nobody_notices() -> None:
    async def main() -> None:
        async with loopback(recycle_rss_bytes=1, recycle_grace_s=0.1) as client:
            player = await client.start(knobs={"horizon": 1_000_000}, max_turns=1_000_000)
            (first,) = client.server.pool.workers
            while first in client.server.pool.workers:
                await player.step()
            assert (await player.step()).status == environment_pb2.EPISODE_STATUS_RUNNING
            assert client.metrics.snapshot()["server/worker/num_restarts"] == 0

    asyncio.run(main())


def test_a_client_over_its_limit_is_told_when_to_come_back_and_others_are_not() -> None:
    async def main() -> None:
        async with loopback(max_episodes_per_client=2) as client:
            players = [await client.start(index=index, client_id="a") for index in range(2)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.start(index=2, client_id="a")
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error_info(caught.value).metadata["setting"] == "env_server.max_episodes_per_client"
            assert retry_delay_s(caught.value) > 0
            assert await client.start(index=2, client_id="b")
            await players[0].end()
            assert await client.start(index=3, client_id="a")

    asyncio.run(main())


def test_the_use_of_privileged_fields_is_logged_once_per_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        async with loopback() as client:
            for client_id in ("a", "a", "a", "b"):
                await client.start(client_id=client_id, with_progress=True)
            assert client.metrics.snapshot()["server/episode/num_privileged"] == 4

    asyncio.run(main())
    logged = [record for record in caplog.records if "privileged" in record.message]
    assert [record.client_id for record in logged] == ["a", "b"]  # type: ignore[attr-defined]  # fields of the event


def test_a_restarted_worker_gives_the_queued_steps_to_the_next() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client, playing(client) as stream:
            crashing = await stream.start(client, "faulty", knobs={"crash_at_turn": 1})
            players = [await stream.start(client, "faulty", index) for index in range(1, 40)]
            calls = [environment_pb2.PlayCall(step=player.request("amber")) for player in (crashing, *players)]
            first, *others = await stream.send(*calls)
            assert (await stream.reply(first)).step.failure.reason == "WORKER_CRASHED"
            assert {(await stream.reply(call_id)).step.turn_index for call_id in others} == {1}
            await until(lambda: not client.server.table.num_in_flight)

    asyncio.run(main())
