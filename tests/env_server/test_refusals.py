"""What a user can get wrong, and what the server says to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from env_server.refusals import CODE_BY_REASON, RefusedError, to_call_error, to_status
from longturn.v1 import environment_pb2, status_pb2, status_pb2_grpc
from tests.env_server.loopback import ODD, Client, error_info, loopback, start_request
from tests.env_server.streams import Stream


def test_a_wrong_start_is_refused_by_name() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"environment": "ekho", "task_id": "echo/train/000000"}, "ENVIRONMENT_NOT_FOUND", "echo"),
        ({"task_id": "echo/trian/000001"}, "TASK_NOT_FOUND", "echo/train/000000"),
        ({"knobs": {"horizn": 3}}, "BAD_KNOB", "horizon"),
        ({"knobs": {"horizon": 0}}, "BAD_KNOB", ""),
        ({"request_id": "short"}, "BAD_REQUEST", ""),
        ({"client_id": "x" * 200}, "BAD_REQUEST", ""),
        ({"request_id": "x" * 129}, "BAD_REQUEST", ""),
    ]

    async def main() -> None:
        async with loopback() as client:
            for options, reason, nearest in cases:
                info = await _refusal(client, **options)
                assert info.reason == reason
                assert not nearest or info.metadata["nearest"] == nearest

    asyncio.run(main())


def test_names_of_a_megabyte_are_refused_with_their_limit_on_both_roads() -> None:
    long = "x" * 2**20
    cases: list[tuple[dict[str, Any], str]] = [
        ({"request_id": long}, "16 to 128"),
        ({"environment": long, "task_id": "echo/train/000000"}, "1024"),
        ({"task_id": long}, "1024"),
        ({"knobs": {long: 3}}, "1024"),
        ({"knobs": {"horizon": long}}, "1024"),
        ({"client_id": long}, "128"),
    ]

    async def main() -> None:
        async with loopback() as client:
            stream = Stream(client.stub.Play())
            for options, limit in cases:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.start(**options)
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert limit in (caught.value.details() or "")
                call = environment_pb2.PlayCall(start=start_request(**options))
                error = (await stream.reply((await stream.send(call))[0])).error
                assert (error.reason, limit in error.message) == ("BAD_REQUEST", True)
            with pytest.raises(grpc.aio.AioRpcError, match="1024"):
                await client.stub.ListTasks(environment_pb2.ListTasksRequest(environment="echo", split=long))
            player = await client.start()
            player.episode_id = long
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await player.step()
            assert error_info(caught.value).reason == "EPISODE_NOT_FOUND"
            await stream.finish()

    asyncio.run(main())


async def _refusal(client: Client, **options: object):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.start(**options)  # type: ignore[arg-type]
    return error_info(caught.value)


def test_a_start_without_a_task_is_refused() -> None:
    async def main() -> None:
        async with loopback() as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stub.StartEpisode(environment_pb2.StartEpisodeRequest(request_id="r" * 32))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(main())


def test_tasks_are_paged_in_a_fixed_order() -> None:
    async def main() -> None:
        async with loopback() as client:
            request = environment_pb2.ListTasksRequest(environment="echo", split="valid", page_size=4000)
            seen: list[str] = []
            while True:
                page = await client.stub.ListTasks(request)
                seen += [item.task.task_id for item in page.tasks]
                request.page_token = page.next_page_token
                if not page.next_page_token:
                    break
            assert page.num_tasks == len(seen) == len(set(seen)) == 10_000
            assert seen == sorted(seen)

    asyncio.run(main())


def test_a_wrong_listing_is_refused_by_name() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"split": "trains"}, "SPLIT_NOT_FOUND"),
        ({"split": "train", "page_token": "-1"}, "BAD_REQUEST"),
        ({"split": "train", "filters": {"level": "3"}}, "BAD_KNOB"),
    ]

    async def main() -> None:
        async with loopback() as client:
            for fields, reason in cases:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.stub.ListTasks(environment_pb2.ListTasksRequest(environment="echo", **fields))
                assert error_info(caught.value).reason == reason

    asyncio.run(main())


def test_environments_are_listed_with_knobs_and_limits() -> None:
    async def main() -> None:
        async with loopback() as client:
            (info,) = (await client.stub.ListEnvironments(environment_pb2.ListEnvironmentsRequest())).environments
            assert (info.name, info.determinism) == ("echo", environment_pb2.DETERMINISM_EXACT)
            horizon = next(knob for knob in info.knobs if knob.name == "horizon")
            assert (horizon.default_value.int_value, horizon.minimum) == (50, 1)
            server = await client.stub.GetServerInfo(environment_pb2.GetServerInfoRequest(protocol_version="1"))
            assert server.limits.lease.seconds == 600
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stub.GetServerInfo(environment_pb2.GetServerInfoRequest(protocol_version="2"))
            assert error_info(caught.value).reason == "PROTOCOL_MISMATCH"

    asyncio.run(main())


def test_privileged_fields_come_only_when_asked_for_and_allowed() -> None:
    async def main() -> None:
        async with loopback() as client:
            plain = await client.start()
            asked = await client.start(with_progress=True, with_oracle=True)
            assert not plain.first.HasField("progress")
            assert not plain.first.HasField("oracle_action")
            assert (asked.first.progress, bool(asked.first.oracle_action)) == (0.0, True)
            assert (await asked.step(asked.first.oracle_action)).progress > 0
            assert client.metrics.snapshot()["server/episode/num_privileged"] == 1
        async with loopback(forbid_privileged=True) as client:
            assert (await _refusal(client, with_progress=True)).reason == "PRIVILEGED_FORBIDDEN"

    asyncio.run(main())


def test_an_observation_beyond_the_limit_names_both_settings_and_the_step_counts() -> None:
    async def main() -> None:
        async with loopback(f"{ODD}:MirrorEnvironment", max_message_bytes=100_000) as client:
            player = await client.start("mirror")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await player.step("x" * 99_500)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error_info(caught.value).metadata["setting"] == "env_server.max_message_bytes"
            assert "grpc.max_receive_message_length" in (caught.value.details() or "")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await player.step("x" * 150_000, turn_index=1)
            assert error_info(caught.value).reason == "MESSAGE_TOO_LARGE"
            assert (await player.step("small", turn_index=1)).turn_index == 2

    asyncio.run(main())


def test_any_text_is_an_action() -> None:
    actions = ("", "\0", "x" * 1_000_000, "【open】 door", "\N{PILE OF POO}" * 10, "\x1b[2J", "\ufffe\U0010ffff")

    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            for turn_index, action in enumerate(actions, start=1):
                assert (await player.step(action)).turn_index == turn_index
            whole = await player.get(with_transcript=True)
            assert tuple(turn.action for turn in whole.transcript) == actions

    asyncio.run(main())


def test_health_reflection_and_status_are_served() -> None:
    async def main() -> None:
        async with loopback() as client, grpc.aio.insecure_channel(client.server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="longturn.v1.EnvironmentService")
            assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            status = await status_pb2_grpc.StatusServiceStub(channel).GetStatus(status_pb2.GetStatusRequest())
            assert (status.daemon, status.phase) == ("env_server", "serving")
            reflected: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # an aio one
            reflection = reflected.ServerReflectionInfo()
            await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            listed = await reflection.read()
            await reflection.done_writing()
            names = {service.name for service in listed.list_services_response.service}
            assert "longturn.v1.EnvironmentService" in names

    asyncio.run(main())


@pytest.mark.parametrize("reason", sorted(CODE_BY_REASON))
def test_a_refusal_says_the_same_on_both_roads(reason: str) -> None:
    refusal = RefusedError(reason, "what happened", retry_after_s=1.5, setting="env_server.port")
    error, status = to_call_error(refusal), to_status(refusal)
    assert (error.code, error.message) == (status.code, status.message)
    assert (error.reason, dict(error.metadata)) == (reason, {"setting": "env_server.port"})
    assert error.retry_after.ToMilliseconds() == 1500
    assert len(status.details) == 2


def test_preparation_runs_once_per_task_beside_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("PREPARED_LOG", str(log))

    async def main() -> None:
        limits = {"prepare_timeout_s": 0.5}
        async with loopback(f"{ODD}:PreparedEnvironment", limits=limits) as client:
            where: dict[str, Any] = {"environment": "prepared", "task_id": "prepared/train/000001"}
            players = await asyncio.gather(*(client.start(**where) for _ in range(4)))
            assert len(log.read_text().splitlines()) == 1
            hanging = asyncio.create_task(_refusal(client, **where, knobs={"is_hanging": True}))
            for player in players:
                await player.step()
            workers = {worker.pid for worker in client.server.pool.workers}
            assert not workers & {int(line.split()[0]) for line in log.read_text().splitlines()}
            assert (await hanging).reason == "START_TIMEOUT"

    asyncio.run(main())
