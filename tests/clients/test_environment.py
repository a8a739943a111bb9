"""EnvClient against real servers: episodes, errors, outages."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from pathlib import Path

import grpc
import pytest

from clients.config import EnvClientConfig
from clients.environment import EnvClient
from clients.sync_environment import SyncEnvClient
from longturn.errors import CallRefusedError, ConfigError, EpisodeLostError, EpisodeMovedError, UnreachableError
from longturn.metrics import Metrics
from longturn.records import EndCause, EpisodeStatus, Failure, StepResult, Task
from longturn.status import StatusBoard, get_status
from longturn.v1 import environment_pb2, environment_pb2_grpc
from tests.clients.daemons import ServerProcess, server_process
from tests.clients.proxy import CuttingProxy
from tests.support.waiting import until, wait_until

ECHO = Task(environment="echo", task_id="echo/train/000003", knobs={"horizon": 6, "observation_bytes": 100})


def _config(address: str, **settings: object) -> EnvClientConfig:
    values = {"address": address, "connect_budget_s": 30.0, "outage_budget_s": 30.0, **settings}
    return EnvClientConfig.model_validate(values)


def _faulty(**knobs: int | bool | float) -> Task:
    return Task(environment="faulty", task_id="faulty/train/000001", knobs=knobs)


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_reaped(address: str) -> None:
    """Return once the server's own status counts a reaped episode."""
    wait_until(lambda: get_status(address).values.get("server/episode/num_reaped"))


async def _play(envs: EnvClient, task: Task, seed: int, results: list[StepResult] | None = None) -> list[StepResult]:
    """Play to the end; `results` sees them come."""
    episode = await envs.start(task, seed=seed, with_oracle=True, with_progress=True)
    results = [] if results is None else results
    results.append(episode.initial)
    while not results[-1].status.is_final:
        results.append(await episode.step(results[-1].oracle_action or ""))
    return results


def test_many_episodes_share_one_stream_and_each_sees_its_own_results(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as envs:
            played = await asyncio.gather(*(_play(envs, ECHO, seed) for seed in range(100)))
        for results in played:
            assert [result.turn_index for result in results] == list(range(7))
            assert results[-1].status is EpisodeStatus.TERMINATED
            assert results[-1].success
            assert results[-1].episode_return == pytest.approx(1.0)
            assert [result.progress for result in results] == pytest.approx([turn / 6 for turn in range(7)])
        assert len({results[0].state_hash for results in played}) == 100

    asyncio.run(main())


def test_equal_seeds_start_in_equal_states(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as envs:
            first, second, other = [await envs.start(ECHO, seed=seed) for seed in (5, 5, 6)]
            assert first.initial.state_hash == second.initial.state_hash != other.initial.state_hash
            assert (first.environment_version, first.data_hash) == ("1", "echo-1")

    asyncio.run(main())


def test_the_server_says_what_it_offers(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as envs:
            assert envs.server_info.protocol_version == "1"
            assert [info.name for info in await envs.list_environments()] == ["echo", "faulty"]
            assert (await envs.environment("echo")).has_oracle
            tasks = await envs.list_tasks("echo", "test", limit=2500)
            assert len({info.task.task_id for info in tasks}) == 2500
            with pytest.raises(CallRefusedError, match="this server has echo, faulty"):
                await envs.environment("ecko")

    asyncio.run(main())


def test_an_unknown_task_or_knob_is_refused_with_the_nearest_name(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as envs:
            with pytest.raises(CallRefusedError, match="echo/train/000001") as task_error:
                await envs.start(Task(environment="echo", task_id="echo/train/1"))
            assert task_error.value.reason == "TASK_NOT_FOUND"
            with pytest.raises(CallRefusedError, match="horizon") as knob_error:
                await envs.start(Task(environment="echo", task_id="echo/train/000001", knobs={"horizn": 3}))
            assert knob_error.value.reason == "BAD_KNOB"
            with pytest.raises(CallRefusedError) as list_error:
                await envs.list_tasks("echo", "dev")
            assert list_error.value.reason

    asyncio.run(main())


def test_ending_an_episode_truncates_or_aborts_it(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as envs:
            for cause in (EndCause.TOKEN_LIMIT, EndCause.STALENESS):
                episode = await envs.start(ECHO)
                await episode.step("x")
                result = await episode.end(cause)
                assert (result.status, result.end_cause, result.turn_index) == (cause.status, cause, 1)

    asyncio.run(main())


def test_a_broken_environment_is_a_failed_result(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as envs:
            episode = await envs.start(_faulty(fail_at_turn=2))
            await episode.step("a")
            result = await episode.step("b")
            assert result.status is EpisodeStatus.FAILED
            assert isinstance(result.failure, Failure)
            assert result.failure.reason == "ENVIRONMENT_BROKEN"

    asyncio.run(main())


def test_actions_of_any_text_are_sent(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as envs:
            episode = await envs.start(Task(environment="echo", task_id="echo/train/000000"))
            for action in ("", "\x00\x0e", "\ud800", "［ｇｏ］", "x" * 1_000_000):
                result = await episode.step(action)
            assert result.turn_index == 5

    asyncio.run(main())


def test_a_call_beyond_the_message_limit_is_refused_and_the_stream_lives(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address, max_message_bytes=100_000)) as envs:
            episode = await envs.start(ECHO)
            with pytest.raises(CallRefusedError, match="max_message_bytes at the server"):
                await episode.step("x" * 100_000)
            assert (await episode.step("x")).turn_index == 1

    asyncio.run(main())


def test_a_reply_beyond_the_message_limit_names_both_settings(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address, max_message_bytes=100_000)) as envs:
            task = Task(environment="echo", task_id="echo/train/000000", knobs={"observation_bytes": 200_000})
            with pytest.raises(CallRefusedError, match="max_message_bytes at the client and max_message_bytes at the"):
                await envs.start(task)
            assert (await envs.start(ECHO)).turn_index == 0

    asyncio.run(main())


def test_a_missed_deadline_ends_only_the_waiting(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address, step_timeout_s=0.3)) as envs:
            task = Task(environment="echo", task_id="echo/train/000000", knobs={"step_sleep_ms": 900.0})
            episode = await envs.start(task)
            with pytest.raises(UnreachableError, match="no answer to step") as error:
                await episode.step("once")
            assert error.value.reason == "DEADLINE_EXCEEDED"
        async with EnvClient(_config(address)) as envs:
            again = await envs.attach(episode.episode_id, episode.episode_token)
            if again.turn_index == 0:
                again.last = await again.step("once")
            transcript = (await envs.get(again)).transcript
            assert [turn.action for turn in transcript] == ["once"]

    asyncio.run(main())


def test_an_episode_moves_to_whoever_attaches_last(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address)) as old, EnvClient(_config(address)) as new:
            episode = await old.start(ECHO, seed=9)
            await episode.step("one")
            taken = await new.attach(episode.episode_id, episode.episode_token)
            assert taken.turn_index == 1
            with pytest.raises(EpisodeMovedError):
                await episode.step("two")
            assert (await taken.step("two")).turn_index == 2

    asyncio.run(main())


def test_a_server_of_another_protocol_is_refused_with_both_versions() -> None:
    class NewerService(environment_pb2_grpc.EnvironmentServiceServicer):
        async def GetServerInfo(self, request: object, context: object):  # noqa: N802
            return environment_pb2.GetServerInfoResponse(server_id="s", protocol_version="2")

    async def main() -> None:
        server = grpc.aio.server()
        environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(NewerService(), server)  # type: ignore[abstract]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            with pytest.raises(ConfigError, match=r"protocol '2', this client '1'; install the same") as caught:
                async with EnvClient(_config(f"127.0.0.1:{port}")):
                    pass
            assert caught.value.reason == "PROTOCOL_MISMATCH"
        finally:
            await server.stop(None)

    asyncio.run(main())


def test_a_changed_data_hash_stops_the_run(address: str) -> None:
    async def main() -> None:
        async with EnvClient(_config(address, data_hashes={"echo": "echo-0"})) as envs:
            with pytest.raises(ConfigError, match=r"hash echo-1 instead of echo-0.*env_server\.data_hashes\.echo"):
                await envs.start(ECHO)

    asyncio.run(main())


def test_a_closed_port_is_named_with_the_command_that_opens_it(caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{_closed_port()}"
    board = StatusBoard("actors", Metrics())

    async def main() -> None:
        with caplog.at_level(logging.WARNING), pytest.raises(UnreachableError, match="longturn serve") as error:
            async with EnvClient(_config(address, connect_budget_s=1.0), board=board):
                pass
        assert address in str(error.value)

    asyncio.run(main())
    said = [vars(record) for record in caplog.records if record.name.startswith("clients.")]
    assert said[0]["address"] == address
    assert said[0]["attempt"] == 1
    assert not board.snapshot().waits


def test_a_server_that_accepts_and_never_answers_is_unreachable() -> None:
    async def main(address: str) -> None:
        with pytest.raises(UnreachableError, match="longturn serve"):
            async with EnvClient(_config(address, connect_budget_s=0.5, attempt_timeout_s=0.3)):
                pass

    with socket.create_server(("127.0.0.1", 0)) as mute:
        asyncio.run(main(f"127.0.0.1:{mute.getsockname()[1]}"))


def test_a_full_server_is_waited_for(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        board = StatusBoard("actors", Metrics())
        async with EnvClient(_config(address), board=board) as envs:
            held = await envs.start(ECHO)
            waiting = asyncio.create_task(envs.start(ECHO, seed=1))
            await until(lambda: board.snapshot().waits)
            assert "TOO_MANY_EPISODES" in board.snapshot().waits[0].reason
            await held.end()
            assert (await waiting).turn_index == 0
            assert not board.snapshot().waits

    with server_process(tmp_path, settings=["max_episodes=1"]) as server:
        asyncio.run(main(server.address))


def test_waiting_for_a_full_server_is_one_wait_however_often_it_refuses(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        board = StatusBoard("actors", Metrics())
        async with EnvClient(_config(address), board=board) as envs:
            held = await envs.start(ECHO)
            starting = [asyncio.create_task(envs.start(ECHO, seed=seed)) for seed in (1, 2)]
            # The server asks for a second between attempts: several have been refused by now.
            await until(lambda: any(wait.waited_s > 3.5 for wait in board.snapshot().waits))
            assert len(board.snapshot().waits) == 1
            await held.end()
            for start in asyncio.as_completed(starting):
                await (await start).end()
            assert not board.snapshot().waits

    with server_process(tmp_path, settings=["max_episodes=1"]) as server:
        asyncio.run(main(server.address))


def test_a_full_server_is_reported_when_the_budget_is_spent(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        async with EnvClient(_config(address, refused_budget_s=0.0)) as envs:
            held = await envs.start(ECHO)
            with pytest.raises(CallRefusedError, match="max_episodes") as error:
                await envs.start(ECHO, seed=1)
            assert error.value.reason == "TOO_MANY_EPISODES"
            await held.end()

    with server_process(tmp_path, settings=["max_episodes=1"]) as server:
        asyncio.run(main(server.address))


def test_leases_are_kept_only_for_episodes_that_somebody_holds(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        async with EnvClient(_config(address)) as envs:
            kept = await envs.start(ECHO, seed=1)
            dropped = await envs.start(ECHO, seed=2)
            del dropped
            gc.collect()
            await asyncio.to_thread(_wait_reaped, address)
            assert (await kept.step("still here")).turn_index == 1

    with server_process(tmp_path, settings=["lease_s=2.0"]) as server:
        asyncio.run(main(server.address))


def test_steps_cut_off_in_flight_are_applied_exactly_once(address: str) -> None:
    """Connections break again and again while steps and starts are under way."""

    async def main(proxy: CuttingProxy) -> None:
        task = Task(environment="echo", task_id="echo/train/000007", knobs={"horizon": 12, "step_sleep_ms": 20.0})
        async with EnvClient(_config(proxy.address)) as envs:
            playing = asyncio.gather(*(_play(envs, task, seed) for seed in range(8)))
            while not playing.done():
                await asyncio.sleep(0.15)
                proxy.cut()
            played = await playing
            assert envs.num_reconnects >= 1
        for results in played:
            assert [result.turn_index for result in results] == list(range(13))
            assert results[-1].success
            assert results[-1].episode_return == pytest.approx(1.0)

    with CuttingProxy(address) as proxy:
        asyncio.run(main(proxy))
    assert proxy.num_cuts >= 2


def test_a_restarted_server_loses_episodes_and_the_client_goes_on(tmp_path: Path) -> None:
    async def main(server: ServerProcess) -> ServerProcess:
        async with EnvClient(_config(server.address)) as envs:
            episode = await envs.start(ECHO)
            task = Task(environment="echo", task_id="echo/train/000000", knobs={"step_sleep_ms": 60_000.0})
            slow = await envs.start(task)
            in_flight = asyncio.create_task(slow.step("never answered"))
            await episode.step("one")
            server.kill()
            restarted = await asyncio.to_thread(ServerProcess, tmp_path / "second", port=server.port)
            try:
                with pytest.raises(EpisodeLostError):
                    await in_flight
                with pytest.raises(EpisodeLostError):
                    await episode.step("two")
                fresh = await envs.start(ECHO)
                assert (await fresh.step("one")).turn_index == 1
                assert envs.num_reconnects >= 1
            finally:
                restarted.stop()
        return restarted

    with server_process(tmp_path / "first") as server:
        asyncio.run(main(server))


def test_episodes_of_a_killed_server_with_a_state_dir_go_on_by_themselves(tmp_path: Path) -> None:
    settings = [f"state_dir={tmp_path / 'state'}"]

    async def main(server: ServerProcess) -> None:
        task = Task(environment="echo", task_id="echo/train/000000", knobs={"horizon": 6, "step_sleep_ms": 300.0})
        async with EnvClient(_config(server.address)) as envs:
            assert "state_dir" in envs.server_info.capabilities
            runs: list[list[StepResult]] = [[] for _ in range(4)]
            playing = asyncio.gather(*(_play(envs, task, seed, results) for seed, results in enumerate(runs)))
            await until(lambda: all(len(results) > 1 for results in runs))
            server.kill()
            assert not any(results[-1].status.is_final for results in runs)
            again = await asyncio.to_thread(ServerProcess, tmp_path / "2", port=server.port, settings=settings)
            try:
                for results in await playing:
                    assert [result.turn_index for result in results] == list(range(7))
                    assert results[-1].success
                    assert results[-1].episode_return == pytest.approx(1.0)
                assert envs.num_reconnects >= 1
            finally:
                again.stop()

    with server_process(tmp_path / "1", settings=settings) as server:
        asyncio.run(main(server))


def test_a_server_that_stays_away_is_reported_and_found_again_later(tmp_path: Path) -> None:
    async def main(server: ServerProcess) -> None:
        async with EnvClient(_config(server.address, outage_budget_s=3.0)) as envs:
            episode = await envs.start(ECHO)
            server.kill()
            with pytest.raises(UnreachableError, match="longturn serve"):
                await episode.step("one")
            with server_process(tmp_path / "second", port=server.port):
                async with asyncio.timeout(60):
                    fresh = await envs.start(ECHO)
                assert (await fresh.step("one")).turn_index == 1

    with server_process(tmp_path / "first") as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("ping_interval_s", [0.0, 5.0])
def test_a_server_that_stalls_longer_than_any_single_answer_may_take_ends_nothing(
    tmp_path: Path, ping_interval_s: float
) -> None:
    """With LONGTURN_SOAK the server stands still for 90 s under the default settings, which pings notice."""
    is_long = "LONGTURN_SOAK" in os.environ
    brief = {"attempt_timeout_s": 0.3, "call_timeout_s": 0.3}
    num_silences = 36 if is_long else 3

    async def main(server: ServerProcess) -> None:
        settings = {"outage_budget_s": 300.0} if is_long else brief
        async with EnvClient(_config(server.address, ping_interval_s=ping_interval_s, **settings)) as envs:
            stepped, ended, idle = [await envs.start(ECHO, seed=seed) for seed in range(3)]
            server.signal(signal.SIGSTOP)
            step, end = asyncio.ensure_future(stepped.step("one")), asyncio.ensure_future(ended.end())
            start = asyncio.ensure_future(envs.start(ECHO, seed=3))
            listing = asyncio.ensure_future(envs.list_environments())
            for _ in range(num_silences):
                with pytest.raises(UnreachableError):
                    await envs.load()
            assert not any((step.done(), end.done(), start.done(), listing.done()))
            server.signal(signal.SIGCONT)
            assert ((await step).turn_index, (await end).end_cause) == (1, EndCause.CLIENT_REQUEST)
            assert (await (await start).step("one")).turn_index == (await idle.step("one")).turn_index == 1
            assert [info.name for info in await listing] == ["echo", "faulty"]

    with server_process(tmp_path) as server:
        asyncio.run(main(server))


def test_the_blocking_twin_plays(address: str) -> None:
    with SyncEnvClient(_config(address)) as envs:
        assert [info.name for info in envs.list_environments()] == ["echo", "faulty"]
        task = envs.list_tasks("echo", "train", limit=1)[0].task
        episode = envs.start(task, max_turns=3, with_oracle=True)
        while not episode.last.status.is_final:
            episode.step(episode.last.oracle_action or "")
        assert episode.last.end_cause is EndCause.TURN_LIMIT
        assert episode.end().turn_index == 3
