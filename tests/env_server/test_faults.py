"""Workers that die, hang or lie: every accepted step still gets exactly one final reply."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
from pathlib import Path

import grpc
import pytest

from env_server.worker_process import WorkerProcess, WorkerState
from longturn.v1 import environment_pb2
from tests.env_server.loopback import FAULTY, ODD, Client, error_info, loopback, until_in_flight
from tests.env_server.streams import playing
from tests.support.waiting import until

FAILED = environment_pb2.EPISODE_STATUS_FAILED
RUNNING = environment_pb2.EPISODE_STATUS_RUNNING
QUICK = {"step_timeout_s": 0.6, "start_timeout_s": 1.0, "prepare_timeout_s": 1.0}


def kill_workers(client: Client) -> None:
    """SIGKILL every playing worker."""
    for worker in client.server.pool.workers:
        os.kill(worker.pid, signal.SIGKILL)


def test_a_worker_killed_under_32_steps_loses_no_reply_and_changes_no_state() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client, playing(client) as stream:
            knobs = {"step_sleep_ms": 20.0}
            players = [await stream.start(client, "faulty", index, knobs=knobs) for index in range(32)]
            twins = [await client.start("faulty", index) for index in range(32)]
            for player in players:
                await stream.ask(step=player.request("amber", 0))
            calls = [environment_pb2.PlayCall(step=player.request("birch", 1)) for player in players]
            ids = await stream.send(*calls)
            await until_in_flight(client, 20)
            kill_workers(client)
            results = [(await stream.reply(call_id)).step for call_id in ids]
            assert {(result.turn_index, result.status) for result in results} == {(2, RUNNING)}
            assert sum(result.rebuilt for result in results) >= 20
            for twin, result in zip(twins, results, strict=True):
                await twin.step("amber")
                assert (await twin.step("birch")).state_hash == result.state_hash

    asyncio.run(main())


def test_an_idle_episode_is_rebuilt_with_its_next_step() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            twin = await client.start()
            await player.step("amber")
            kill_workers(client)
            result = await player.step("birch")
            assert (result.turn_index, result.rebuilt) == (2, True)
            await twin.step("amber")
            assert (await twin.step("birch")).state_hash == result.state_hash
            assert not (await player.step("cedar")).rebuilt

    asyncio.run(main())


def test_a_step_that_times_out_fails_its_episode_and_its_neighbours_are_rebuilt() -> None:
    async def main() -> None:
        async with loopback(FAULTY, limits=QUICK) as client, playing(client) as stream:
            hanging = await stream.start(client, "faulty", knobs={"hang_at_turn": 1})
            neighbours = [await stream.start(client, "faulty", index) for index in range(1, 5)]
            calls = [environment_pb2.PlayCall(step=player.request("amber")) for player in (hanging, *neighbours)]
            first, *others = await stream.send(*calls)
            failed = (await stream.reply(first)).step
            assert (failed.status, failed.failure.reason) == (FAILED, "STEP_TIMEOUT")
            for call_id in others:
                result = (await stream.reply(call_id)).step
                assert (result.turn_index, result.rebuilt, result.status) == (1, True, RUNNING)
            assert await hanging.step("amber", turn_index=0) == failed
            assert await hanging.end() == failed

    asyncio.run(main())


def test_a_long_queue_is_not_a_timeout() -> None:
    async def main() -> None:
        async with loopback(FAULTY, limits=QUICK) as client, playing(client) as stream:
            knobs = {"step_sleep_ms": 100.0}
            players = [await stream.start(client, "faulty", index, knobs=knobs) for index in range(20)]
            ids = await stream.send(*(environment_pb2.PlayCall(step=player.request("amber")) for player in players))
            assert {(await stream.reply(call_id)).step.turn_index for call_id in ids} == {1}
            assert client.metrics.snapshot()["server/worker/num_timeouts"] == 0

    asyncio.run(main())


def test_an_episode_that_crashes_its_worker_twice_fails_and_its_neighbours_live() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client, playing(client) as stream:
            crashing = await stream.start(client, "faulty", knobs={"crash_at_turn": 2})
            neighbours = [await stream.start(client, "faulty", index) for index in range(1, 4)]
            await stream.ask(step=crashing.request("amber", 0))
            players = (*neighbours[:1], crashing, *neighbours[1:])
            calls = [environment_pb2.PlayCall(step=p.request("birch", int(p is crashing))) for p in players]
            ids = await stream.send(*calls)
            results = [(await stream.reply(call_id)).step for call_id in ids]
            failed = results.pop(1)
            assert (failed.status, failed.failure.reason) == (FAILED, "WORKER_CRASHED")
            assert {(result.turn_index, result.status) for result in results} == {(1, RUNNING)}

    asyncio.run(main())


def test_a_broken_environment_is_failed_and_never_a_reward_of_zero() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client:
            neighbour = await client.start("faulty", 1)
            for fault in ("fail_at_turn", "raise_at_turn", "nan_at_turn"):
                player = await client.start("faulty", knobs={fault: 2})
                await player.step("amber")
                failed = await player.step("birch")
                assert (failed.status, failed.failure.reason) == (FAILED, "ENVIRONMENT_BROKEN")
                assert failed.turn_index == 1
            assert not (await neighbour.step()).rebuilt

    asyncio.run(main())


def test_a_start_that_breaks_is_a_typed_error_and_frees_its_place() -> None:
    cases = [
        ("hang_at_turn", "START_TIMEOUT"),
        ("crash_at_turn", "WORKER_CRASHED"),
        ("fail_at_turn", "ENVIRONMENT_BROKEN"),
    ]

    async def main() -> None:
        async with loopback(FAULTY, limits=QUICK, max_episodes=1) as client:
            for fault, reason in cases:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.start("faulty", knobs={fault: 0})
                assert error_info(caught.value).reason == reason
            assert (await (await client.start("faulty", 1)).step()).turn_index == 1

    asyncio.run(main())


def test_a_task_that_hangs_twice_is_refused_from_then_on() -> None:
    async def main() -> None:
        async with loopback(FAULTY, limits=QUICK) as client:
            reasons: list[str] = []
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.start("faulty", knobs={"hang_at_turn": 0})
                reasons.append(error_info(caught.value).reason)
            assert reasons == ["START_TIMEOUT", "START_TIMEOUT", "TASK_QUARANTINED"]
            assert await client.start("faulty", 1)

    asyncio.run(main())


def test_a_replay_that_differs_is_lost_and_never_silently_different() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client:
            player = await client.start("faulty", knobs={"is_drifting": True})
            await player.step("amber")
            kill_workers(client)
            lost = await player.step("birch")
            assert (lost.status, lost.failure.reason) == (FAILED, "EPISODE_LOST")
            assert "state hash" in lost.failure.message

    asyncio.run(main())


def test_an_episode_that_cannot_be_replayed_is_lost_with_its_worker() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:UnrepeatableEnvironment") as client:
            idle = await client.start("unrepeatable")
            busy = await client.start("unrepeatable", 1, knobs={"step_sleep_ms": 60_000.0})
            first = await idle.step("amber")
            assert (await idle.get(with_transcript=True)).transcript[0].result == first
            running = asyncio.create_task(busy.step("amber"))
            await until_in_flight(client, 1)
            kill_workers(client)
            assert (await running).failure.reason == "EPISODE_LOST"
            await until(lambda: client.metrics.snapshot().get("server/episode/num_failed", 0) == 2)
            assert (await idle.get()).last.failure.reason == "EPISODE_LOST"

    asyncio.run(main())


def test_workers_are_replaced_after_their_share_of_episodes_and_nobody_notices() -> None:
    async def main() -> None:
        async with loopback(recycle_episodes=5, recycle_grace_s=0.2) as client:
            (first,) = client.server.pool.workers
            endless = {"horizon": 1_000_000}
            players = [await client.start(index=index, knobs=endless, max_turns=1_000_000) for index in range(6)]
            while first in client.server.pool.workers:
                for player in players:
                    await player.step()
            assert all([(await player.step()).status == RUNNING for player in players])
            assert client.metrics.snapshot()["server/worker/num_recycled"] >= 1
            assert client.metrics.snapshot()["server/worker/num_restarts"] == 0

    asyncio.run(main())


def test_ten_killed_workers_leave_no_descriptor_behind() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            counts: list[int] = []
            for _ in range(10):
                kill_workers(client)
                await player.step()
                counts.append(len(os.listdir("/proc/self/fd")))
            assert counts[-1] <= counts[1]

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif("LONGTURN_SOAK" not in os.environ, reason="takes minutes; set LONGTURN_SOAK=1")
@pytest.mark.timeout(900)
def test_a_hundred_replaced_workers_leave_no_descriptor_no_process_and_no_memory_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them are killed, half are recycled; the server is this very process."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    async def main() -> None:
        async with loopback(recycle_episodes=10, recycle_grace_s=0.1) as client:
            held: list[tuple[int, int, int]] = []
            player = await client.start(knobs={"horizon": 1_000_000}, max_turns=1_000_000)
            for index in range(100):
                (worker,) = client.server.pool.workers
                if index % 2:
                    kill_workers(client)
                else:  # as many starts as wear it out, and no more: its successor is to last
                    for _ in range(10):
                        await (await client.start()).end()
                await until(lambda worker=worker: is_replaced(client, worker))
                assert (await player.step()).status == RUNNING
                held.append((len(os.listdir("/proc/self/fd")), num_folders(tmp_path), own_rss_bytes()))
            descriptors, folders, memory = zip(*held, strict=True)
            assert max(descriptors[-10:]) <= max(descriptors[:10])
            assert max(folders[-10:]) <= max(folders[:10])
            assert statistics.median(memory[-10:]) - statistics.median(memory[20:30]) < 8 * 2**20
            assert num_children() <= 4  # worker, preparer, guard, and one that is being replaced
            assert (await player.get()).last.status == RUNNING

    asyncio.run(main())


def is_replaced(client: Client, worker: WorkerProcess) -> bool:
    """Whether the worker is gone and a single other one is open in its place."""
    workers = client.server.pool.workers
    return worker not in workers and [one.state for one in workers] == [WorkerState.OPEN]


def num_folders(root: Path) -> int:
    """Folders of workers."""
    return sum(1 for _ in root.glob("longturn-serve-*/*"))


def num_children() -> int:
    """Child processes of this one, zombies included."""
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def own_rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_rewards_of_every_numeric_kind_are_numbers() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:RewardEnvironment") as client:
            player = await client.start("reward")
            for action, expected in (("bool 1", 1.0), ("int 3", 3.0), ("array 0.5", 0.5), ("float -2", -2.0)):
                assert (await player.step(action)).reward == expected
            assert (await player.get()).last.episode_return == 2.5
            assert (await player.step("array inf")).failure.reason == "ENVIRONMENT_BROKEN"

    asyncio.run(main())


def test_an_episode_cut_at_its_turn_limit_keeps_its_partial_score_and_is_no_success() -> None:
    async def main() -> None:
        async with loopback() as client:
            player = await client.start(knobs={"horizon": 10}, max_turns=3, with_oracle=True)
            result = player.first
            while result.status == environment_pb2.EPISODE_STATUS_RUNNING:
                result = await player.step(result.oracle_action)
            assert result.status == environment_pb2.EPISODE_STATUS_TRUNCATED
            assert result.end_cause == environment_pb2.END_CAUSE_TURN_LIMIT
            assert (result.score, result.success) == (pytest.approx(0.3), False)
            assert result.episode_return == pytest.approx(0.3)

    asyncio.run(main())


def test_invalid_actions_count_towards_the_turn_limit() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:InvalidActionEnvironment") as client:
            player = await client.start("invalid", max_turns=4)
            results = [await player.step("nonsense") for _ in range(4)]
            assert not any(result.action_valid for result in results)
            last = results[-1]
            assert (last.status, last.end_cause) == (
                environment_pb2.EPISODE_STATUS_TRUNCATED,
                environment_pb2.END_CAUSE_TURN_LIMIT,
            )
            assert not last.success
            whole = await player.get(with_transcript=True)
            assert whole.transcript[-1].result == last

    asyncio.run(main())
