"""Traffic that is not what it should be: it is dropped, and nobody else notices."""

from __future__ import annotations

import asyncio
import pickle
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longturn.v1 import environment_pb2
from tests.env_server.loopback import Client, error_info, loopback, start_request
from tests.support.certificates import Authority

MARK = Path("pickled-payload-ran")
SERVICE = "/longturn.v1.EnvironmentService"
UNARY = ("GetServerInfo", "ListTasks", "StartEpisode", "Step", "StepBatch", "GetEpisode", "ForkEpisode", "EndEpisode")
MALFORMED = b"\xff" * 40


class _Payload:
    """Would create a file if anybody unpickled it."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(MARK), "w")


KINDS = {
    "http1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "http1 post": b"POST /longturn.v1.EnvironmentService/Step HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody",
    "random": bytes(range(256)) * 64,
    "pickle": pickle.dumps(_Payload()),
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    "bad frames": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500,
    "huge frame": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"\0" * 500,
    "nothing": b"",
}


def _is_dropped(address: str, data: bytes) -> bool:
    """Send bytes and close our half; whether the server then ends the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30.0) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                continue
        except TimeoutError:
            return False
        except OSError:  # reset, or gone before all was sent
            return True
    return True


def test_bytes_that_are_not_grpc_are_dropped_and_leave_the_server_unharmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with loopback() as client:
            player = await client.start()
            for kind, data in KINDS.items():
                assert await asyncio.to_thread(_is_dropped, client.server.address, data), kind
                assert await player.step()
            assert not (await player.step()).rebuilt

    asyncio.run(main())
    assert not MARK.exists()


def test_a_tls_port_drops_what_is_no_tls(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")

    async def main() -> None:
        async with loopback(tls={"certificate": pair.certificate, "key": pair.key}) as client:
            for kind, data in KINDS.items():
                assert await asyncio.to_thread(_is_dropped, client.server.address, data), kind

    asyncio.run(main())


def test_a_tls_client_fails_at_a_plain_port_and_harms_nobody(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = grpc.ssl_channel_credentials(authority.pair.certificate.read_bytes())

    async def main() -> None:
        async with loopback() as client, grpc.aio.secure_channel(client.server.address, trusted) as channel:
            call: Any = channel.unary_unary(f"{SERVICE}/Step", request_serializer=bytes)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=30.0)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert (await (await client.start()).step()).turn_index == 1

    asyncio.run(main())


def test_a_malformed_message_is_refused_by_name_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with loopback() as client, grpc.aio.insecure_channel(client.server.address) as channel:
            for number, method in enumerate(UNARY, start=1):
                call: Any = channel.unary_unary(f"{SERVICE}/{method}", request_serializer=bytes)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(MALFORMED)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert error_info(caught.value).reason == "BAD_REQUEST"
                assert f"longturn.v1.{method}Request" in (caught.value.details() or "")
                assert len(caplog.records) == number, caplog.text
            assert {record.message for record in caplog.records} == {"malformed message"}
            status: Any = channel.unary_unary("/longturn.v1.StatusService/GetStatus", request_serializer=bytes)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status(MALFORMED)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (await (await client.start()).step()).turn_index == 1

    asyncio.run(main())


def test_a_malformed_message_ends_its_stream_after_the_calls_before_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with loopback() as client, grpc.aio.insecure_channel(client.server.address) as channel:
            method: Any = channel.stream_stream(
                f"{SERVICE}/Play",
                request_serializer=bytes,
                response_deserializer=environment_pb2.PlayResponse.FromString,
            )
            stream = method()
            call = environment_pb2.PlayCall(call_id=1, start=start_request())
            await stream.write(environment_pb2.PlayRequest(calls=[call]).SerializeToString())
            await stream.write(MALFORMED)
            started = (await stream.read()).replies[0].start
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert [record.message for record in caplog.records] == ["malformed message"]
            request = environment_pb2.GetEpisodeRequest(
                episode_id=started.episode_id, episode_token=started.episode_token
            )
            assert (await client.stub.GetEpisode(request)).turn_index == 0

    asyncio.run(main())


def test_names_that_would_forge_log_lines_are_refused() -> None:
    async def main() -> None:
        async with loopback() as client:
            for client_id in ("a\nINFO episode reaped", "\x1b[2J"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.start(client_id=client_id)
                assert error_info(caught.value).reason == "BAD_REQUEST"

    asyncio.run(main())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies=st.lists(st.tuples(st.sampled_from(UNARY), st.binary(max_size=200)), min_size=20, max_size=20))
def test_any_bytes_get_a_status_and_no_traceback(
    shared: tuple[asyncio.AbstractEventLoop, Client], bodies: list[tuple[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    loop, client = shared

    async def send_all() -> set[grpc.StatusCode]:
        async with grpc.aio.insecure_channel(client.server.address) as channel:
            calls = [
                channel.unary_unary(f"{SERVICE}/{method}", request_serializer=bytes)(body, timeout=30.0)  # type: ignore[call-arg]
                for method, body in bodies
            ]
            return {await call.code() for call in calls}

    assert not loop.run_until_complete(send_all()) & {grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert "Traceback" not in caplog.text


@pytest.fixture
def shared():
    """A server that all examples of a test use, and its loop."""
    loop = asyncio.new_event_loop()
    context = loopback()
    client = loop.run_until_complete(context.__aenter__())
    yield loop, client
    loop.run_until_complete(context.__aexit__(None, None, None))
    loop.close()
