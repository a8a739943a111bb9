"""A finished phase is never repeated, and its time is counted over all starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from longturn.disk import DiskError
from longturn.errors import ConfigError
from longturn.launch.phases import PhaseLog, finished_phases
from longturn.launch.screen import EpisodeCount, Eta, clock
from tests.support.full_disk import largest_file


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


@pytest.mark.parametrize("content", ["{", "[]", '{"wall_s": 1.0}'])
def test_a_damaged_marker_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(ConfigError, match=r"train\.json is damaged .*remove it to repeat that phase"):
        PhaseLog(tmp_path, say=ignore).once("train", dict)


@pytest.mark.parametrize("content", ["{", '{"train": "long"}'])
def test_damaged_times_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "spent.json").write_text(content)
    with pytest.raises(ConfigError, match=r"spent\.json is damaged .*remove it to go on without the times"):
        PhaseLog(tmp_path, say=ignore)


def test_a_marker_that_finds_no_room_is_one_clear_line(tmp_path: Path) -> None:
    log = PhaseLog(tmp_path, say=ignore)
    with largest_file(64), pytest.raises(DiskError, match=r"train\.json: File too large; raise the limit"):
        log.once("train", lambda: {"games": "x" * 100})
    assert not (tmp_path / "train.json").exists()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"file/phases: Not a directory$"):
        PhaseLog(tmp_path / "file" / "phases", say=ignore)


def test_a_full_disk_does_not_hide_why_a_phase_ended(tmp_path: Path) -> None:
    said: list[str] = []
    log = PhaseLog(tmp_path, say=said.append)

    def broken() -> dict[str, object]:
        raise ConfigError("the split does not exist")

    with largest_file(8), pytest.raises(ConfigError, match="the split does not exist"):
        log.once("train", broken)
    assert said[0].startswith("train: its time is not kept")


def test_finished_phases_are_those_with_a_marker(tmp_path: Path) -> None:
    assert finished_phases(tmp_path / "absent") == []
    PhaseLog(tmp_path, say=ignore).once("train", dict)
    assert finished_phases(tmp_path) == ["train"]


def test_the_eta_follows_the_rate() -> None:
    eta = Eta()
    assert eta.left_s(0, 10, 0.0) is None
    assert eta.left_s(2, 10, 20.0) == pytest.approx(80.0)
    assert eta.left_s(2, 10, 30.0) == pytest.approx(120.0)
    assert eta.left_s(10, 10, 100.0) == 0.0


def test_times_are_shown_in_minutes() -> None:
    assert clock(425.9) == "7:05"


def test_a_look_without_an_answer_changes_no_count() -> None:
    count = EpisodeCount()
    assert [count.note(counter) for counter in (None, 5.0, 7.0, None, 8.0)] == [0.0, 0.0, 2.0, 2.0, 3.0]


def test_a_restarted_server_counts_on() -> None:
    count = EpisodeCount()
    assert [count.note(counter) for counter in (5.0, 9.0, 0.0, 2.0)] == [0.0, 4.0, 4.0, 6.0]
