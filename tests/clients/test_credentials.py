"""What a client proves, and whom it trusts: against servers that ask for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from clients.config import EnvClientConfig, EvalConfig
from clients.credentials import Credentials
from clients.environment import EnvClient
from longturn.config import dump_config, load_config
from longturn.errors import CallRefusedError, ConfigError, UnreachableError
from longturn.records import Task
from tests.clients.daemons import server_process
from tests.support.certificates import Authority
from tests.support.waiting import until

TASK = Task(environment="echo", task_id="echo/train/000003")
OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def _config(address: str, **settings: object) -> EnvClientConfig:
    return EnvClientConfig.model_validate({"address": address, "connect_budget_s": 30.0, **settings})


async def _turn(config: EnvClientConfig) -> int:
    """Connect and take one step."""
    async with EnvClient(config) as envs:
        return (await (await envs.start(TASK)).step("amber")).turn_index


def test_a_token_is_sent_and_one_that_rotates_is_followed(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.write_text(f"{OLD}\n")
    ours.write_text(f"# the server's\npool {OLD}\n")

    async def main(address: str) -> None:
        with pytest.raises(CallRefusedError, match=r"env_server\.token_file") as error:
            await _turn(_config(address))
        assert error.value.reason == "UNAUTHENTICATED"
        assert await _turn(_config(address, token=OLD)) == 1
        async with EnvClient(_config(address, token_file=ours)) as envs:
            episode = await envs.start(TASK)
            ours.write_text(NEW)
            theirs.write_text(NEW)  # the server lets go of the stream that the old token opened
            await until(lambda: envs.num_reconnects)
            assert (await episode.step("amber")).turn_index == 1
        with pytest.raises(CallRefusedError):
            await _turn(_config(address, token=OLD))

    with server_process(tmp_path / "server", settings=[f"token_file={theirs}"]) as server:
        asyncio.run(main(server.address))


def test_certificates_prove_both_sides(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "stranger")
    pair, client = authority.issue("server"), authority.issue("pool")
    ca, foreign_ca = authority.pair.certificate, stranger.pair.certificate
    mine = {"certificate": client.certificate, "key": client.key}

    async def main(address: str) -> None:
        assert await _turn(_config(address, tls={"ca": ca, **mine})) == 1
        by_name = f"localhost:{address.rpartition(':')[2]}"
        assert await _turn(_config(by_name, tls={"ca": ca, **mine})) == 1
        brief = {"connect_budget_s": 1.0}
        for tls in ({"ca": ca}, {"ca": foreign_ca, **mine}, {"ca": ca, "server_name": "other.example", **mine}, {}):
            with pytest.raises(UnreachableError, match=r"env_server\.tls"):
                await _turn(_config(address, tls=tls, **brief))

    settings = [f"tls.certificate={pair.certificate}", f"tls.key={pair.key}", f"tls.client_ca={ca}"]
    with server_process(tmp_path / "server", settings=settings) as server:
        asyncio.run(main(server.address))


def test_a_token_does_not_travel_unencrypted_to_another_machine() -> None:
    for address in ("env.example:50051", "10.0.0.7:50051", "[2001:db8::1]:50051"):
        with pytest.raises(ValidationError, match="unencrypted") as error:
            _config(address, token=OLD)
        assert OLD not in str(error.value)
        overrides = [f"env_server.address={address!r}", f"env_server.token={OLD}"]
        with pytest.raises(ConfigError, match=r"eval\.env_server: .*unencrypted") as refusal:
            load_config(EvalConfig, table="eval", overrides=overrides)
        assert OLD not in str(refusal.value)
        _config(address)
        _config(address, token=OLD, insecure=True)
        _config(address, token=OLD, tls={"enabled": True})
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/socket"):
        _config(address, token=OLD)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    for file in (empty, tmp_path / "absent"):
        with pytest.raises(ConfigError, match=r"env_server\.token_file"):
            Credentials(_config("127.0.0.1:1", token_file=file)).metadata()
    with pytest.raises(ConfigError, match=r"env_server\.tls\.ca"):
        Credentials(_config("127.0.0.1:1", tls={"ca": tmp_path / "absent"})).channel(())
    with pytest.raises(ValidationError, match=r"tls\.key"):
        _config("127.0.0.1:1", tls={"certificate": "c.pem"})


def test_settings_are_shown_without_the_token() -> None:
    assert OLD not in dump_config(_config("127.0.0.1:1", token=OLD), table="env_server")
    assert OLD not in repr(_config("127.0.0.1:1", token=OLD))
