"""Who may call: bearer tokens, TLS and client certificates."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pydantic import ValidationError

from env_server.bearer_tokens import BearerTokens
from env_server.config import EnvServerConfig
from env_server.server import EnvServer, serving
from env_server.tls import server_credentials
from longturn.errors import ConfigError
from longturn.metrics import Metrics
from longturn.status import StatusBoard, get_status
from longturn.v1 import environment_pb2, environment_pb2_grpc, status_pb2, status_pb2_grpc
from tests.env_server.loopback import Player, error_info, start_request
from tests.env_server.processes import WAIT_S, daemon
from tests.support.certificates import Authority, KeyPair
from tests.support.waiting import until

OLD, NEW, OTHER = "old-token-0123456789", "new-token-0123456789", "other-token-012345678"
EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


@asynccontextmanager
async def guarded(**settings: object) -> AsyncIterator[EnvServer]:
    values = {"environments": ("echo",), "port": 0, "num_workers": 1, **settings}
    metrics = Metrics()
    board = StatusBoard("env_server", metrics)
    async with serving(EnvServerConfig.model_validate(values), metrics=metrics, board=board) as server:
        yield server


def bearer(token: str) -> Sequence[tuple[str, str]]:
    return (("authorization", f"Bearer {token}"),)


async def code_of(call: Any) -> grpc.StatusCode:
    """OK, or the code it failed with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def channel_credentials(authority: Authority, pair: KeyPair | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=authority.pair.certificate.read_bytes(),
        private_key=pair.key.read_bytes() if pair else None,
        certificate_chain=pair.certificate.read_bytes() if pair else None,
    )


@asynccontextmanager
async def secure_stub(
    address: str, credentials: grpc.ChannelCredentials
) -> AsyncIterator[environment_pb2_grpc.EnvironmentServiceAsyncStub]:
    async with grpc.aio.secure_channel(address, credentials) as channel:
        yield environment_pb2_grpc.EnvironmentServiceStub(channel)


def test_without_a_valid_token_nothing_but_health_answers(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# tokens\n\nalice {OLD}\n")

    async def main() -> None:
        async with guarded(token_file=file) as server, grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = environment_pb2_grpc.EnvironmentServiceStub(channel)
            health: Any = health_pb2_grpc.HealthStub(channel)
            status: Any = status_pb2_grpc.StatusServiceStub(channel)
            for metadata in ((), bearer(NEW), (("authorization", OLD),), (("authorization", f"Basic {OLD}"),)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.StartEpisode(start_request(), metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert error_info(caught.value).reason == "UNAUTHENTICATED"
                refused = status.GetStatus(status_pb2.GetStatusRequest(), metadata=metadata)
                assert await code_of(refused) is grpc.StatusCode.UNAUTHENTICATED
                assert await stub.Play(metadata=metadata).code() is grpc.StatusCode.UNAUTHENTICATED
            reflected: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # an aio one
            assert await reflected.ServerReflectionInfo().code() is grpc.StatusCode.UNAUTHENTICATED
            served = await health.Check(health_pb2.HealthCheckRequest())
            assert served.status == health_pb2.HealthCheckResponse.SERVING
            started = await stub.StartEpisode(start_request(), metadata=bearer(OLD))
            assert started.result.turn_index == 0

    asyncio.run(main())


def test_tokens_rotate_without_a_restart_and_a_revoked_one_loses_its_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(OLD)

    async def main() -> None:
        async with guarded(token_file=file) as server, grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = environment_pb2_grpc.EnvironmentServiceStub(channel)
            info = environment_pb2.GetServerInfoRequest()
            stream = stub.Play(metadata=bearer(OLD))
            call = environment_pb2.PlayCall(call_id=1, start=start_request())
            await stream.write(environment_pb2.PlayRequest(calls=[call]))
            assert (await stream.read()).replies[0].HasField("start")
            _replace(file, f"{OLD}\nnext {NEW}\n")
            await _until_ok(stub, NEW)
            assert await code_of(stub.GetServerInfo(info, metadata=bearer(OLD))) is grpc.StatusCode.OK
            _replace(file, "no token\n")  # a mistake changes nothing
            await until(lambda: "the bearer tokens stay as they are" in caplog.messages)
            assert await code_of(stub.GetServerInfo(info, metadata=bearer(OLD))) is grpc.StatusCode.OK
            _replace(file, f"next {NEW}\n")
            assert await stream.read() is EOF
            assert await code_of(stub.GetServerInfo(info, metadata=bearer(OLD))) is grpc.StatusCode.UNAUTHENTICATED
            assert await code_of(stub.GetServerInfo(info, metadata=bearer(NEW))) is grpc.StatusCode.OK

    asyncio.run(main())


async def _until_ok(stub: Any, token: str) -> None:
    request = environment_pb2.GetServerInfoRequest()
    while await code_of(stub.GetServerInfo(request, metadata=bearer(token))) is not grpc.StatusCode.OK:  # noqa: ASYNC110  # another process has no event for us
        await asyncio.sleep(0.05)


def _replace(file: Path, text: str) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(file)


def test_a_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SERVER_TOKEN", OLD)
    file = tmp_path / "tokens"
    file.write_text(f"bob {NEW}\n")
    tokens = BearerTokens(file=file, variable="SERVER_TOKEN")
    found = [tokens.find(token) for token in (OLD, NEW, OTHER)]
    assert [name and name[1] for name in found] == ["", "bob", None]
    monkeypatch.delenv("SERVER_TOKEN")
    with pytest.raises(ConfigError, match="SERVER_TOKEN"):
        BearerTokens(file=None, variable="SERVER_TOKEN")


@pytest.mark.parametrize("text", ["", "# nothing\n", "short", "a b c-0123456789-0123456789", f"{OLD}\nshort"])
def test_a_token_file_without_proper_tokens_is_refused_without_showing_them(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(ConfigError, match="token file") as caught:
        BearerTokens(file=file, variable="")
    assert not any(word in str(caught.value) for word in (OLD, "short", "0123456789"))


def test_a_token_is_kept_from_the_code_of_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_TOKEN", OLD)

    async def main() -> list[bytes]:
        async with guarded(token_variable="SERVER_TOKEN") as server:
            paths = [Path(f"/proc/{worker.pid}/environ") for worker in server.pool.workers]
            return [await asyncio.to_thread(path.read_bytes) for path in paths]

    (variables,) = asyncio.run(main())
    assert b"PYTHONPATH" in variables
    assert OLD.encode() not in variables


def test_the_name_of_a_token_counts_in_the_limits(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"alice {OLD}\nalice {NEW}\nbob {OTHER}\n")

    async def main() -> None:
        async with (
            guarded(token_file=file, max_episodes_per_client=1) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            stub: Any = environment_pb2_grpc.EnvironmentServiceStub(channel)
            starts = [
                await code_of(stub.StartEpisode(start_request(client_id=client_id), metadata=bearer(token)))
                for token, client_id in ((OLD, "one"), (NEW, "two"), (OTHER, "one"))
            ]
            ok, full = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
            assert starts == [ok, full, ok]

    asyncio.run(main())


def test_client_certificates_are_demanded_and_their_names_count_in_the_limits(tmp_path: Path) -> None:
    authority, strangers = Authority(tmp_path / "ours"), Authority(tmp_path / "strangers")
    pair = authority.issue("server")
    alice, bob, mallory = authority.issue("alice"), authority.issue("bob"), strangers.issue("alice")
    tls = {"certificate": pair.certificate, "key": pair.key, "client_ca": authority.pair.certificate}

    async def start(address: str, who: KeyPair | None, client_id: str) -> grpc.StatusCode:
        async with secure_stub(address, channel_credentials(authority, who)) as stub:
            return await code_of(stub.StartEpisode(start_request(client_id=client_id), timeout=30.0))

    async def main() -> None:
        async with guarded(tls=tls, max_episodes_per_client=1) as server:
            address = server.address
            assert await start(address, alice, "anna") is grpc.StatusCode.OK
            assert await start(address, alice, "otto") is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await start(address, bob, "anna") is grpc.StatusCode.OK
            for nobody in (None, mallory):
                assert await start(address, nobody, "alice") is grpc.StatusCode.UNAVAILABLE
            async with grpc.aio.insecure_channel(address) as channel:  # plain text to a TLS port
                stub: Any = environment_pb2_grpc.EnvironmentServiceStub(channel)
                assert await code_of(stub.StartEpisode(start_request())) is grpc.StatusCode.UNAVAILABLE
            assert await start(address, bob, "anna") is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(main())


def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    old, new = first.issue("server"), second.issue("server")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def install(pair: KeyPair) -> None:
        key.write_bytes(pair.key.read_bytes())
        certificate.write_bytes(pair.certificate.read_bytes())

    async def reaches(address: str, authority: Authority) -> bool:
        async with secure_stub(address, channel_credentials(authority)) as stub:
            call = stub.GetServerInfo(environment_pb2.GetServerInfoRequest(), timeout=30.0)
            return await code_of(call) is grpc.StatusCode.OK

    async def main() -> None:
        install(old)
        async with guarded(tls={"certificate": certificate, "key": key}) as server:
            assert await reaches(server.address, first)
            assert not await reaches(server.address, second)
            key.write_bytes(b"half a key")  # the old one stays in use
            assert await reaches(server.address, first)
            install(new)
            assert await reaches(server.address, second)

    asyncio.run(main())


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.issue("one"), authority.issue("two")
    cases = [
        (one.certificate, two.key, None, "tls.certificate"),
        (tmp_path / "absent.pem", one.key, None, "absent.pem"),
        (one.certificate, one.key, one.key, "tls.client_ca"),
    ]
    for certificate, key, client_ca, hint in cases:
        values = {"tls": {"certificate": certificate, "key": key, "client_ca": client_ca}}
        with pytest.raises(ConfigError, match=hint):
            server_credentials(EnvServerConfig.model_validate(values).tls)


def test_off_loopback_encryption_and_a_proof_of_identity_are_demanded() -> None:
    tls = {"certificate": "c.pem", "key": "k.pem"}
    refused: list[dict[str, object]] = [
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "env.example"},
        {"host": "0.0.0.0", "token_file": "tokens"},
        {"host": "0.0.0.0", "tls": tls},
    ]
    taken: list[dict[str, object]] = [
        {"host": "127.0.0.2"},
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "0.0.0.0", "insecure": True},
        {"host": "0.0.0.0", "tls": tls, "token_file": "tokens"},
        {"host": "0.0.0.0", "tls": tls, "token_variable": "TOKEN"},
        {"host": "0.0.0.0", "tls": tls | {"client_ca": "ca.pem"}},
    ]
    for values in refused:
        with pytest.raises(ValidationError, match="--insecure"):
            EnvServerConfig.model_validate(values)
    for values in taken:
        EnvServerConfig.model_validate(values)


def test_reflection_can_be_turned_off() -> None:
    async def main() -> None:
        async with guarded(reflection=False) as server, grpc.aio.insecure_channel(server.address) as channel:
            reflected: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # an aio one
            stream = reflected.ServerReflectionInfo()
            await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(main())


def test_no_secret_is_logged_and_status_stays_on_loopback(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("server")
    file = tmp_path / "tokens"
    file.write_text(f"alice {OLD}\n")
    options = ["--env", "echo", "--token-file", str(file), "--state-dir", str(tmp_path / "state")]
    options += ["--set", f"tls.certificate={pair.certificate}", "--set", f"tls.key={pair.key}"]
    request = start_request(with_progress=True, client_id="somebody")

    async def main(address: str) -> Player:
        async with secure_stub(address, channel_credentials(authority)) as stub:
            refused: Any = stub.StartEpisode(request, metadata=bearer(NEW))
            assert await code_of(refused) is grpc.StatusCode.UNAUTHENTICATED
            started = await stub.StartEpisode(request, metadata=bearer(OLD))
            player = Player(stub, started.episode_id, started.episode_token, started.result)
            wrong = environment_pb2.StepRequest(episode_id=player.episode_id, episode_token="guess", action="amber")
            assert await code_of(stub.Step(wrong, metadata=bearer(OLD))) is grpc.StatusCode.PERMISSION_DENIED
            await stub.Step(player.request("amber"), metadata=bearer(OLD))
            return player

    with daemon(tmp_path, *options, "--log-format", "json") as (process, address):
        player = asyncio.run(main(address))
        status_address = json.loads((tmp_path / "ready.json").read_text())["status_address"]
        assert status_address != address
        assert get_status(status_address).facts["address"] == address
        process.terminate()
        _, log = process.communicate(timeout=WAIT_S)
    assert "calls without a valid bearer token are refused" in log
    assert "client asks for privileged fields" in log
    assert "alice" in log
    secrets = (OLD, NEW, player.token, request.request_id, "guess")
    assert not [secret for secret in secrets if secret in log]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("*.log"))
    assert not [secret for secret in secrets if secret.encode() in stored]
    private = [tmp_path / "state", *(tmp_path / "state").glob("*.log"), tmp_path / "state" / "secret"]
    assert not [path for path in private if path.stat().st_mode & 0o077]


def test_settings_are_shown_without_their_secrets() -> None:
    command = [sys.executable, "-m", "env_server", "--dry-run", "--set", "token_variable=SERVER_TOKEN"]
    environment = os.environ | {"SERVER_TOKEN": OLD}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True, env=environment)
    assert 'token_variable = "SERVER_TOKEN"' in done.stdout
    assert OLD not in done.stdout + done.stderr


def test_refused_calls_do_not_flood_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tokens"
    file.write_text(OLD)

    async def main() -> None:
        async with guarded(token_file=file) as server, grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = environment_pb2_grpc.EnvironmentServiceStub(channel)
            for _ in range(50):
                await code_of(stub.StartEpisode(start_request()))

    asyncio.run(main())
    lines = [record for record in caplog.records if "without a valid bearer token" in record.message]
    assert len(lines) <= 2
