"""Engines that the launcher did not start: loaded, checked, waited for, never taken on trust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from longturn.errors import ConfigError, UnreachableError
from longturn.launch.config import RunConfig
from longturn.launch.document import write_engine_key
from longturn.launch.layout import RunLayout
from longturn.launch.outside_engines import OutsideEngineError, OutsideEngines
from tests.support.scripted_engine import ScriptedEngine

MODEL = Path("/runs/r/warmstart/model")


def engines_at(
    *urls: str, key: str = "", wait_s: float = 20.0, tick: Callable[[], None] = lambda: None, said: list[str]
) -> OutsideEngines:
    return OutsideEngines(urls, key, wait_s=wait_s, tick=tick, say=said.append)


def test_all_engines_load_the_model_as_the_version_with_their_key() -> None:
    one, two = ScriptedEngine(api_key="secret"), ScriptedEngine(api_key="secret")
    engines_at(one.url, f"{two.url}/", key="secret", said=[]).load(MODEL, "7")
    for engine in (one, two):
        assert ("/update_weights_from_disk", {"model_path": str(MODEL), "weight_version": "7"}) in engine.calls
        engine.close()


def test_a_refusal_is_passed_on_in_the_engines_words() -> None:
    engine = ScriptedEngine()
    engine.fail_loads = 1
    with pytest.raises(OutsideEngineError, match="out of memory"):
        engines_at(engine.url, said=[]).load(MODEL, "7")
    engine.close()


def test_an_engine_that_was_started_again_is_noticed() -> None:
    engine = ScriptedEngine()
    engines = engines_at(engine.url, said=[])
    engines.load(MODEL, "7")
    engines.confirm("7")
    engine.weight_version = "default"
    with pytest.raises(OutsideEngineError, match="'default', not '7'"):
        engines.confirm("7")
    engine.close()


def test_an_absent_engine_is_waited_for_and_the_command_to_start_one_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("longturn.launch.outside_engines._SAY_AFTER_S", 0.0)
    absent = ScriptedEngine()
    absent.close()
    started: list[ScriptedEngine] = []
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            started.append(ScriptedEngine(port=absent.port))

    said: list[str] = []
    engines_at(absent.url, tick=tick, said=said).load(MODEL, "0")
    [line] = said
    assert f"--model-path {MODEL} --port {absent.port}" in line
    assert started[0].weight_version == "0"
    started[0].close()


def test_an_engine_that_stays_away_ends_the_wait_with_the_setting() -> None:
    absent = ScriptedEngine()
    absent.close()
    with pytest.raises(UnreachableError, match=r"run\.engine_urls"):
        engines_at(absent.url, wait_s=0.0, said=[]).load(MODEL, "0")


def test_a_run_keeps_the_key_of_engines_elsewhere_to_its_owner(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret\n")
    layout = RunLayout(tmp_path)
    config = RunConfig(engine_urls=("http://127.0.0.1:30000",), engine_api_key_file=key_file)
    write_engine_key(layout, config)
    assert layout.engine_key.read_text() == "secret"
    assert layout.engine_key.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match=r"run\.engine_api_key_file"):
        write_engine_key(layout, config.model_copy(update={"engine_api_key_file": tmp_path / "none"}))
    with pytest.raises(ValueError, match=r"belongs to run\.engine_urls"):
        RunConfig(engine_api_key_file=key_file)
