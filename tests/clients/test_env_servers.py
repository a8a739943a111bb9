"""Several env servers as one: starts are spread, episodes stay, a lost server is said."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from clients.config import EnvClientConfig
from clients.env_servers import EnvServers
from clients.environment import EnvClient
from clients.environments import open_environments
from clients.server_addresses import per_address
from clients.sync_environment import SyncEnvClient
from longturn.errors import CallRefusedError, ConfigError, EpisodeLostError, LongturnError, UnreachableError
from longturn.records import Task
from tests.clients.daemons import server_process
from tests.support.waiting import until

TASK = Task(environment="echo", task_id="echo/train/000001")


def _config(*addresses: str, **settings: object) -> EnvClientConfig:
    values = {"connect_budget_s": 10.0, **settings}
    return EnvClientConfig.model_validate({"address": ",".join(addresses), **values})


def _closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_starts_are_spread_by_load_and_episodes_stay_where_they_started(tmp_path: Path) -> None:
    async def main(first: str, second: str) -> None:
        async with EnvClient(_config(first)) as stranger:
            others = [await stranger.start(TASK, seed=seed) for seed in range(6)]
            async with open_environments(_config(first, second)) as envs:
                assert isinstance(envs, EnvServers)
                await until(lambda: envs.load_by_address[first] == 6)
                episodes = [await envs.start(TASK, seed=seed) for seed in range(10)]
                assert envs.num_live_by_address == {first: 2, second: 8}
                for episode in episodes:
                    for turn_index in range(3):
                        assert (await episode.step("amber")).turn_index == turn_index + 1
                assert envs.num_live_by_address == {first: 2, second: 8}
                taken_over = await envs.attach(episodes[-1].episode_id, episodes[-1].episode_token)
                assert taken_over.turn_index == 3
                with pytest.raises(EpisodeLostError):
                    await envs.attach("nobody", "nothing")
            assert others

    with server_process(tmp_path / "a") as one, server_process(tmp_path / "b") as other:
        asyncio.run(main(one.address, other.address))


def test_a_lost_server_is_said_and_starts_go_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with open_environments(_config(one.address, other.address, outage_budget_s=4.0)) as envs:
            assert isinstance(envs, EnvServers)
            episodes = [await envs.start(TASK, seed=seed) for seed in range(4)]
            assert envs.num_live_by_address == {one.address: 2, other.address: 2}
            one.kill()
            await until(lambda: "env server lost" in caplog.text)
            (record,) = [record for record in caplog.records if record.message.startswith("env server lost")]
            facts = vars(record)
            assert (facts["address"], facts["num_episodes"]) == (one.address, 2)
            later = [await envs.start(TASK, seed=seed) for seed in range(4)]
            assert envs.num_live_by_address[other.address] == 6
            outcomes = await asyncio.gather(
                *(episode.step("amber") for episode in [*episodes, *later]), return_exceptions=True
            )
            lost = [outcome for outcome in outcomes if isinstance(outcome, UnreachableError)]
            assert len(lost) == 2
            assert all(one.address in str(error) for error in lost)
            assert not [o for o in outcomes if isinstance(o, BaseException) and not isinstance(o, UnreachableError)]
            with server_process(tmp_path / "c", port=one.port):
                await until(lambda: "env server is back" in caplog.text)
                newest = [await envs.start(TASK, seed=seed) for seed in range(8)]
                assert len(newest) == 8
                assert envs.num_live_by_address[one.address] > 0

    with server_process(tmp_path / "a") as one, server_process(tmp_path / "b") as other:
        asyncio.run(main())


def test_a_full_server_passes_its_starts_on_and_the_last_refusal_is_reported(tmp_path: Path) -> None:
    async def main(addresses: list[str]) -> None:
        async with open_environments(_config(*addresses, refused_budget_s=0.0)) as envs:
            episodes = [await envs.start(TASK, seed=seed) for seed in range(5)]
            with pytest.raises(CallRefusedError) as caught:
                await envs.start(TASK)
            assert caught.value.reason == "TOO_MANY_EPISODES"
            assert episodes

    small = server_process(tmp_path / "a", settings=["max_episodes=1"])
    large = server_process(tmp_path / "b", settings=["max_episodes=4"])
    with small as one, large as other:
        asyncio.run(main([one.address, other.address]))


def test_an_absent_server_is_left_out_and_joins_later(address: str, tmp_path: Path) -> None:
    absent = _closed_port()

    async def main() -> None:
        async with open_environments(_config(absent, address)) as envs:
            assert isinstance(envs, EnvServers)
            first = await envs.start(TASK)
            assert envs.num_live_by_address == {absent: 0, address: 1}
            assert [info.name for info in await envs.list_environments()] == ["echo", "faulty"]
            with server_process(tmp_path, port=int(absent.rpartition(":")[2])):
                await until(lambda: absent in envs.load_by_address)
                episodes = [await envs.start(TASK, seed=seed) for seed in range(4)]
                assert envs.num_live_by_address[absent] > 0
                for episode in episodes:
                    await episode.end()
            assert (await first.step("amber")).turn_index == 1

    asyncio.run(main())


def test_no_server_at_all_names_every_address() -> None:
    async def main(addresses: list[str]) -> None:
        with pytest.raises(UnreachableError) as caught:
            async with open_environments(_config(*addresses, connect_budget_s=0.5)):
                pass
        assert all(address in str(caught.value) for address in addresses)
        assert "longturn serve" in str(caught.value)

    asyncio.run(main([_closed_port(), _closed_port()]))


def test_a_server_that_cannot_be_used_is_an_error_at_once(address: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-a-decent-length\n")

    async def main(guarded: str) -> None:
        with pytest.raises(LongturnError) as caught:
            async with open_environments(_config(address, guarded)):
                pass
        assert caught.value.reason == "UNAUTHENTICATED"

    with server_process(tmp_path / "guarded", settings=[f"token_file={str(tokens)!r}"]) as server:
        asyncio.run(main(server.address))


def test_a_token_that_is_no_longer_valid_is_said_once_and_a_start_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-a-decent-length\n")

    async def main(addresses: list[str]) -> None:
        async with open_environments(_config(*addresses, token="a-token-of-a-decent-length")) as envs:
            assert (await envs.start(TASK)).turn_index == 0
            tokens.write_text("another-token-of-a-decent-length\n")
            await until(lambda: caplog.text.count("does not tell its load") == 2)
            with pytest.raises(LongturnError) as caught:
                await envs.start(TASK)
            assert caught.value.reason == "UNAUTHENTICATED"
        assert caplog.text.count("does not tell its load") == 2

    settings = [f"token_file={str(tokens)!r}"]
    with (
        server_process(tmp_path / "a", settings=settings) as one,
        server_process(tmp_path / "b", settings=settings) as two,
    ):
        asyncio.run(main([one.address, two.address]))


def test_different_data_at_two_servers_is_refused(address: str) -> None:
    async def main() -> None:
        hashes = {"echo": "echo-0"}
        async with open_environments(_config(address, address.replace("127.0.0.1", "localhost"))) as envs:
            assert isinstance(envs, EnvServers)
        async with open_environments(_config(address, f"dns:localhost:{address[10:]}", data_hashes=hashes)) as envs:
            with pytest.raises(ConfigError) as caught:
                await envs.start(TASK)
            assert caught.value.reason == "DATA_CHANGED"

    asyncio.run(main())


def test_a_name_stands_for_all_its_addresses_under_one_client_id() -> None:
    async def main() -> None:
        tls = {"enabled": True}
        configs = await per_address(_config("dns:localhost:5", "10.0.0.1:6", "10.0.0.1:6", tls=tls))
        assert {"127.0.0.1:5", "10.0.0.1:6"} <= {config.address for config in configs}
        assert len({config.client_id for config in configs}) == 1
        assert {config.tls.server_name for config in configs if config.address.endswith(":5")} == {"localhost"}
        assert {config.tls.server_name for config in configs if config.address.endswith(":6")} == {""}
        for wrong in ("dns:nobody.invalid:5", "dns:localhost"):
            with pytest.raises(ConfigError):
                await per_address(_config(wrong))

    asyncio.run(main())


def test_the_blocking_twin_takes_many_addresses(address: str) -> None:
    with SyncEnvClient(_config(address, _closed_port())) as envs:
        assert envs.server_info.server_id
        assert envs.start(TASK).step("amber").turn_index == 1
