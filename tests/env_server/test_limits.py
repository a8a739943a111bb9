"""Time limits of single environments."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from env_server.config import EnvServerConfig
from tests.env_server.loopback import FAULTY, ODD, error_info, loopback

PREPARED = f"{ODD}:PreparedEnvironment"


def test_an_entry_changes_what_it_names_and_keeps_the_rest() -> None:
    limits = {"step_timeout_s": 5.0, "start_timeout_s": 7.0, "prepare_timeout_s": 9.0}
    config = EnvServerConfig.model_validate(
        {"limits": limits, "limits_by_environment": {"textworld": {"step_timeout_s": 1.0}}}
    )
    assert config.limits_of("textworld").model_dump() == limits | {"step_timeout_s": 1.0}
    assert config.limits_of("echo").model_dump() == limits


def test_a_preparation_ends_at_its_environments_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPARED_LOG", str(tmp_path / "log"))

    async def main() -> None:
        async with loopback(PREPARED, limits_by_environment={"prepared": {"prepare_timeout_s": 0.6}}) as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.start("prepared", knobs={"is_hanging": True})
            info = error_info(caught.value)
            assert info.reason == "START_TIMEOUT"
            assert info.metadata["setting"] == "env_server.limits_by_environment.prepared.prepare_timeout_s"

    asyncio.run(main())


def test_a_start_and_a_step_that_take_too_long_name_the_setting_that_applied() -> None:
    async def main() -> None:
        own = {"faulty": {"start_timeout_s": 0.6}}
        async with loopback(FAULTY, limits={"step_timeout_s": 0.6}, limits_by_environment=own) as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.start("faulty", knobs={"hang_at_turn": 0})
            setting = "env_server.limits_by_environment.faulty.start_timeout_s"
            assert error_info(caught.value).metadata["setting"] == setting
            player = await client.start("faulty", 1, knobs={"hang_at_turn": 1})
            assert (await player.step()).failure.message.endswith("than env_server.limits.step_timeout_s")

    asyncio.run(main())


def test_a_step_names_its_environments_own_limit() -> None:
    async def main() -> None:
        async with loopback(FAULTY, limits_by_environment={"faulty": {"step_timeout_s": 0.6}}) as client:
            player = await client.start("faulty", knobs={"hang_at_turn": 1})
            message = (await player.step()).failure.message
            assert message.endswith("than env_server.limits_by_environment.faulty.step_timeout_s")

    asyncio.run(main())
