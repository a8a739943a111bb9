"""With a state dir, episodes outlive the server: killed, stopped, or out of disk."""

from __future__ import annotations

import asyncio
import errno
import resource
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from env_server import state_log
from env_server.config import EnvServerConfig
from env_server.durability import RETRY_S
from env_server.server import serving
from env_server.state_log import RecordKind, StateLog
from longturn.errors import ConfigError
from longturn.metrics import Metrics
from longturn.status import StatusBoard
from longturn.v1 import environment_pb2, environment_pb2_grpc
from tests.env_server.loopback import (
    FAULTY,
    ODD,
    Player,
    error_info,
    loopback,
    retry_delay_s,
    start_request,
    until,
    until_in_flight,
)
from tests.env_server.processes import daemon

RUNNING = environment_pb2.EPISODE_STATUS_RUNNING
FAILED = environment_pb2.EPISODE_STATUS_FAILED


@asynccontextmanager
async def stub_of(address: str) -> AsyncIterator[environment_pb2_grpc.EnvironmentServiceAsyncStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield environment_pb2_grpc.EnvironmentServiceStub(channel)


def moved(player: Player, stub: environment_pb2_grpc.EnvironmentServiceAsyncStub) -> Player:
    """The same episode at another server."""
    return Player(stub, player.episode_id, player.token, player.first, player.turn_index)


async def refusal_of(call: object) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]  # any rpc
    return error_info(caught.value).reason


async def start(stub: environment_pb2_grpc.EnvironmentServiceAsyncStub, *args: object, **options: object) -> Player:
    request = start_request(*args, **options)  # type: ignore[arg-type]
    response = await stub.StartEpisode(request, timeout=60.0)
    return Player(stub, response.episode_id, response.episode_token, response.result)


def test_episodes_of_a_killed_server_go_on_where_they_were(tmp_path: Path) -> None:
    options = ("--env", "echo", "--state-dir", str(tmp_path / "state"))
    request = start_request(index=1)

    async def before(
        address: str, process: subprocess.Popen[str]
    ) -> tuple[Player, Player, environment_pb2.StepResult, Player, str, Player]:
        async with stub_of(address) as stub:
            player, ended = await start(stub), await start(stub, index=2)
            for action in ("amber", "birch", "cedar"):
                last = await player.step(action)
            await ended.end()
            response = await stub.StartEpisode(request)
            slow = await start(stub, index=3, knobs={"step_sleep_ms": 1000.0})
            await slow.step("amber")
            actions = ("birch", "cedar")
            steps = [asyncio.create_task(slow.step(action, turn_index=1)) for action in actions]
            (refused,), (running,) = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            # Whichever came second is refused at once, for the other one is in flight.
            assert error_info(refused.exception()).reason == "ACTION_MISMATCH"
            process.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await running
            repeated = Player(stub, response.episode_id, response.episode_token, response.result)
            return player, ended, last, slow, actions[steps.index(running)], repeated

    async def after(
        address: str,
        player: Player,
        ended: Player,
        last: environment_pb2.StepResult,
        slow: Player,
        running: str,
        repeated: Player,
    ) -> None:
        async with stub_of(address) as stub:
            player, ended, slow = (moved(one, stub) for one in (player, ended, slow))
            assert await player.step("cedar", turn_index=2) == last
            assert await refusal_of(player.step("delta", turn_index=2)) == "ACTION_MISMATCH"
            assert await refusal_of(ended.step()) == "EPISODE_OVER"
            result = await player.step("delta", turn_index=3)
            twin = await start(stub)
            for action in ("amber", "birch", "cedar"):
                await twin.step(action)
            expected = await twin.step("delta")
            assert (result.rebuilt, result.state_hash) == (True, expected.state_hash)
            assert (result.turn_index, result.episode_return) == (4, expected.episode_return)
            whole = await player.get(with_transcript=True)
            assert [turn.action for turn in whole.transcript] == ["amber", "birch", "cedar", "delta"]
            assert whole.transcript[2].result == last
            assert (await slow.step(running, turn_index=1)).turn_index == 2
            again = await stub.StartEpisode(request)
            assert (again.episode_id, again.episode_token) == (repeated.episode_id, repeated.token)
            assert again.result == repeated.first

    with daemon(tmp_path, *options) as (process, address):
        kept = asyncio.run(before(address, process))
    with daemon(tmp_path, *options) as (_, address):
        asyncio.run(after(address, *kept))


def test_a_stopped_server_leaves_its_episodes_to_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with loopback(state_dir=tmp_path) as client:
            player = await client.start(with_progress=True)
            await player.step("amber")
            fork = await client.stub.ForkEpisode(_fork_request(player))
            forked = Player(client.stub, fork.episode_id, fork.episode_token, fork.result, 1)
            last = await forked.step("birch")
            await client.server.drain(5.0)
        for _ in range(2):  # the second time the log spans two segments
            async with loopback(state_dir=tmp_path) as client:
                assert client.metrics.snapshot()["server/episode/num_restored"] == 2
                player, forked = moved(player, client.stub), moved(forked, client.stub)
                assert await forked.step("birch", turn_index=forked.turn_index - 1) == last
                again = await client.stub.ForkEpisode(_fork_request(player))
                assert (again.episode_id, again.episode_token) == (forked.episode_id, forked.token)
                last = await forked.step("birch", turn_index=last.turn_index)
                assert last.rebuilt

    asyncio.run(main())


def _fork_request(player: Player) -> environment_pb2.ForkEpisodeRequest:
    return environment_pb2.ForkEpisodeRequest(
        request_id="f" * 32, episode_id=player.episode_id, episode_token=player.token, at_turn=1
    )


def test_what_cannot_go_on_as_it_was_is_lost_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with loopback("echo", FAULTY, f"{ODD}:UnrepeatableEnvironment", state_dir=tmp_path) as client:
            plain, unrepeatable = await client.start(), await client.start("unrepeatable")
            drifting = await client.start("faulty", knobs={"is_drifting": True})
            first = await unrepeatable.step()
            for player in (plain, drifting):
                await player.step()
        async with loopback(f"{ODD}:NewerEchoEnvironment", FAULTY, state_dir=tmp_path) as client:
            for player, reason in ((plain, "data echo-2"), (unrepeatable, "without environment unrepeatable")):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await moved(player, client.stub).step()
                assert error_info(caught.value).reason == "EPISODE_LOST"
                assert reason in (caught.value.details() or "")
            lost = await moved(drifting, client.stub).step()
            assert (lost.status, lost.failure.reason) == (FAILED, "EPISODE_LOST")
            assert "state hash" in lost.failure.message
            whole = await moved(unrepeatable, client.stub).get(with_transcript=True)
            assert whole.transcript[0].result == first
        async with loopback("echo", f"{ODD}:UnrepeatableEnvironment", state_dir=tmp_path / "other") as client:
            unrepeatable = await client.start("unrepeatable")
        async with loopback("echo", f"{ODD}:UnrepeatableEnvironment", state_dir=tmp_path / "other") as client:
            last = (await moved(unrepeatable, client.stub).get()).last
            assert (last.status, last.failure.reason) == (FAILED, "EPISODE_LOST")
            assert "determinism NONE" in last.failure.message

    asyncio.run(main())


def test_a_full_disk_refuses_what_is_new_and_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    state = tmp_path / "state"
    options = ("--env", "echo", "--state-dir", str(state))

    def limit(pid: int, num_bytes: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))

    async def before(address: str, pid: int) -> tuple[Player, Player, environment_pb2.StepResult]:
        async with stub_of(address) as stub:
            player, other = await start(stub), await start(stub, index=1)
            last = await player.step("amber")
            size = max(path.stat().st_size for path in state.glob("*.log"))
            limit(pid, size + 100)  # room for the record of an action, not for that of its result
            for call in (player.step("birch"), player.step("birch"), other.step("amber"), start(stub, index=2)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                info = error_info(caught.value)
                assert (info.reason, info.metadata["setting"]) == ("STATE_DIR_UNWRITABLE", "env_server.state_dir")
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert retry_delay_s(caught.value) > 0
            limit(pid, resource.RLIM_INFINITY)
            await asyncio.sleep(RETRY_S)
            last = await player.step("birch", turn_index=1)
            assert (await other.step("amber")).turn_index == 1
            return player, other, last

    async def after(address: str, player: Player, other: Player, last: environment_pb2.StepResult) -> None:
        async with stub_of(address) as stub:
            assert await moved(player, stub).step("birch", turn_index=1) == last
            assert (await moved(player, stub).step("cedar", turn_index=2)).turn_index == 3
            assert (await moved(other, stub).get()).turn_index == 1

    with daemon(tmp_path, *options) as (process, address):
        played = asyncio.run(before(address, process.pid))
    with daemon(tmp_path, *options) as (_, address):
        asyncio.run(after(address, *played))


def test_a_state_dir_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    async def refusal(folder: Path) -> str:
        config = EnvServerConfig.model_validate({"environments": ("echo",), "port": 0, "state_dir": folder})
        with pytest.raises(ConfigError, match=r"env_server\.state_dir") as caught:
            async with serving(config, metrics=Metrics(), board=StatusBoard("env_server", Metrics())):
                pass
        return str(caught.value)

    (tmp_path / "file").write_text("")
    assert "cannot be used" in asyncio.run(refusal(tmp_path / "file"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "format").write_text("7")
    assert "format '7'" in asyncio.run(refusal(tmp_path / "other"))
    log = StateLog(tmp_path / "used")
    assert "another server" in asyncio.run(refusal(tmp_path / "used"))
    log.close()
    StateLog(tmp_path / "used").close()


def test_segments_go_once_their_episodes_are_gone_or_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr("env_server.durability.SYNC_S", 0.05)

    async def main() -> None:
        async with loopback(state_dir=tmp_path, final_grace_s=0.2) as client:
            player = await client.start(knobs={"horizon": 1_000_000}, max_turns=1_000_000)
            first = _segments(tmp_path)[0]
            while first in _segments(tmp_path):
                last = await player.step()
            await until(lambda: len(_segments(tmp_path)) <= state_log.KEPT_SEGMENTS)
        async with loopback(state_dir=tmp_path) as client:
            player = moved(player, client.stub)
            assert await player.step(turn_index=last.turn_index - 1) == last
            assert (await player.step(turn_index=last.turn_index)).status == RUNNING

    asyncio.run(main())


def _segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.log"))


@pytest.mark.parametrize("num_lost", [1, 9, 17, 40])
def test_a_record_that_was_cut_short_ends_its_segment_only(tmp_path: Path, num_lost: int) -> None:
    log = StateLog(tmp_path)
    payloads = [bytes([index]) * (10 + index) for index in range(5)]
    for index, payload in enumerate(payloads):
        log.append(RecordKind.RESULT, index, payload)
    log.close()
    (path,) = tmp_path.glob("*.log")
    whole = path.read_bytes()
    path.write_bytes(whole[:-num_lost])
    log = StateLog(tmp_path)
    read = [record.payload for record in log.read()]
    assert read == payloads[: len(read)]
    assert len(read) >= 3
    log.append(RecordKind.RESULT, 9, b"later")
    log.close()
    log = StateLog(tmp_path)
    assert [record.payload for record in log.read()] == [*read, b"later"]
    log.close()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    log = StateLog(tmp_path)
    for index in range(3):
        log.append(RecordKind.RESULT, index, b"payload")
    log.close()
    (path,) = tmp_path.glob("*.log")
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    log = StateLog(tmp_path)
    assert len(list(log.read())) == 1
    log.close()


def test_the_log_keeps_what_found_no_room_and_appends_it_later(tmp_path: Path) -> None:
    log = StateLog(tmp_path)
    log.append(RecordKind.RESULT, 1, b"x" * 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011  # its number is looked at
            log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert log.is_behind
    log.append(RecordKind.RESULT, 2, b"y")
    log.close()
    log = StateLog(tmp_path)
    assert [record.payload for record in log.read()] == [b"x" * 1000, b"y"]
    log.close()


def test_the_steps_of_one_call_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_flushes = 0
    flush = StateLog.flush

    def counted(log: StateLog) -> None:
        nonlocal num_flushes
        num_flushes += 1
        flush(log)

    monkeypatch.setattr(StateLog, "flush", counted)

    async def main() -> None:
        async with loopback(state_dir=tmp_path) as client:
            players = await asyncio.gather(*(client.start(index=index) for index in range(50)))
            before = num_flushes
            request = environment_pb2.StepBatchRequest(steps=[player.request("amber") for player in players])
            response = await client.stub.StepBatch(request)
            assert {item.result.turn_index for item in response.items} == {1}
            # 100 records. The 50 actions lie in one write; a busy worker may answer them one by one.
            assert num_flushes - before < 75

    asyncio.run(main())


def test_a_killed_worker_and_a_state_dir_go_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with loopback(FAULTY, state_dir=tmp_path, limits={"step_timeout_s": 0.6}) as client:
            hanging = await client.start("faulty", knobs={"hang_at_turn": 2})
            await hanging.step("amber")
            running = asyncio.create_task(hanging.step("birch"))
            await until_in_flight(client)
            failed = await running
            assert failed.failure.reason == "STEP_TIMEOUT"
        async with loopback(FAULTY, state_dir=tmp_path) as client:
            again = moved(hanging, client.stub)
            assert await again.step("birch", turn_index=1) == failed
            assert (await again.get()).last == failed

    asyncio.run(main())
