"""`longturn status` shows who waits for whom."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from longturn.errors import ConfigError, UnreachableError
from longturn.metrics import Metrics
from longturn.status import StatusBoard, StatusServer
from longturn.status_command import status


def run_status(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(status)
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def address() -> Iterator[str]:
    metrics = Metrics()
    metrics.count("learner/group/kept", 5)
    board = StatusBoard("learner", metrics)
    board.set_phase("waiting")
    server = StatusServer(board)
    with board.waiting("actors", "the last group of batch 3"), board.waiting("engine", "an answer", budget_s=600.0):
        yield server.address
    server.close()


@pytest.fixture
def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_an_address_is_asked_whom_it_waits_for(address: str) -> None:
    text = run_status(address, "--values")
    assert re.search(r"actors: the last group of batch 3 \(\d+\.\d s\)", text)
    assert re.search(r"engine: an answer \(\d+\.\d of 600 s\)", text)
    assert "learner/group/kept" in text


def test_a_run_folder_lists_all_its_daemons(address: str, tmp_path: Path) -> None:
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "learner.json").write_text(json.dumps({"pid": 1, "status_address": address}))
    (tmp_path / "ready" / "engine.json").write_text(json.dumps({"pid": 2, "address": "127.0.0.1:1"}))
    text = run_status(str(tmp_path))
    assert "waiting" in text
    assert "no answer" in text


def test_a_run_without_living_daemons_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "engine.json").write_text(json.dumps({"pid": 2, "address": "127.0.0.1:1"}))
    with pytest.raises(UnreachableError, match="--resume"):
        run_status(str(tmp_path))


def test_an_address_where_nothing_answers_says_which_daemon_and_setting_would(unused_address: str) -> None:
    with pytest.raises(UnreachableError, match=r"`longturn serve` at env_server\.port.*learner\.status_port") as caught:
        run_status(unused_address)
    assert "--resume" not in str(caught.value)


def test_a_word_that_is_neither_folder_nor_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither"):
        run_status("nonsense")


@pytest.mark.parametrize("content", ["{", '{"pid": 1}'])
def test_a_damaged_ready_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "engine.json").write_text(content)
    with pytest.raises(ConfigError, match=r"engine\.json is damaged.*remove it"):
        run_status(str(tmp_path))


def test_a_port_that_another_daemon_has_is_refused_with_its_setting(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"port {port}: it is in use; change learner\.status_port"):
        StatusServer(StatusBoard("learner", Metrics()), port=port, setting="learner.status_port")
