"""A finished phase is never repeated, and its time is counted over all starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from longturn.errors import ConfigError
from longturn.launch.phases import PhaseLog
from longturn.launch.screen import Eta, clock


def ignore(line: str) -> None:
    """Stands for a screen that nobody looks at."""


def test_a_finished_phase_is_skipped_and_keeps_its_result(tmp_path: Path) -> None:
    calls: list[int] = []

    def work() -> dict[str, object]:
        calls.append(1)
        return {"num_games": 3}

    assert PhaseLog(tmp_path, say=ignore).once("prepare", work) == {"num_games": 3}
    assert PhaseLog(tmp_path, say=ignore).once("prepare", work) == {"num_games": 3}
    assert len(calls) == 1


def test_an_interrupted_phase_is_repeated_and_its_time_is_kept(tmp_path: Path) -> None:
    def broken() -> dict[str, object]:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        PhaseLog(tmp_path, say=ignore).once("train", broken)
    spent_s = PhaseLog(tmp_path, say=ignore).wall_times_s()["train"]
    log = PhaseLog(tmp_path, say=ignore)
    log.once("train", dict)
    assert log.wall_times_s()["train"] >= spent_s


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text("{")
    with pytest.raises(ConfigError, match=r"train\.json is damaged"):
        PhaseLog(tmp_path, say=ignore).once("train", dict)


def test_the_eta_follows_the_rate() -> None:
    eta = Eta()
    assert eta.left_s(0, 10, 0.0) is None
    assert eta.left_s(2, 10, 20.0) == pytest.approx(80.0)
    assert eta.left_s(2, 10, 30.0) == pytest.approx(120.0)
    assert eta.left_s(10, 10, 100.0) == 0.0


def test_times_are_shown_in_minutes() -> None:
    assert clock(425.9) == "7:05"
