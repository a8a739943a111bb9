"""`longturn view` reads ledgers without disturbing them, and recorded files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from learner.ledger.schema import open_ledger_file
from longturn.codec import task_to_proto, trajectory_to_bytes
from longturn.errors import ConfigError
from longturn.records import Trajectory
from longturn.trajectory_file import TrajectoryWriter
from longturn.view import view
from tests.longturn.examples import make_task, make_trajectory, make_turn


def run_view(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(view)
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A ledger with one group of two members in batch 3, kept by the filter."""
    connection = open_ledger_file(tmp_path / "ledger.db")
    task = task_to_proto(make_task()).SerializeToString()
    connection.execute(
        "INSERT INTO slots (slot_id, purpose, batch, position, task, seed, kind, group_size)"
        " VALUES (1, 'TRAIN', 3, 24, ?, '11', 'coin_collector/116', 2)",
        (task,),
    )
    connection.execute("INSERT INTO groups (group_id, slot_id, ordinal, issued_s) VALUES ('g0', 1, 0, 0.0)")
    for member_index, success in ((0, False), (1, True)):
        data = trajectory_to_bytes(make_trajectory(member_index=member_index, success=success))
        connection.execute(
            "INSERT INTO trajectories VALUES ('g0', ?, 0, 3, x'00', ?, ?)", (member_index, data, float(member_index))
        )
    connection.execute("INSERT INTO batches (batch, run_epoch, training_step, recorded_s) VALUES (3, 0, 3, 0.0)")
    connection.execute("INSERT INTO verdicts VALUES (3, 'g0', 'KEPT', 0.25)")
    connection.close()
    return tmp_path


def test_a_run_is_listed_newest_first_with_what_became_of_it(run_folder: Path) -> None:
    lines = [line for line in run_view(str(run_folder)).splitlines() if "g0/" in line]
    assert len(lines) == 2
    for word in ("g0/1", "train 3", "coin_collector/116", "terminated", "1.00", "yes", "3-4", "KEPT"):
        assert word in lines[0]
    assert "truncated (turn_limit)" in lines[1]


def test_one_member_is_read_in_full(run_folder: Path) -> None:
    text = run_view(str(run_folder), "g0/1", "--tokens")
    for words in ("-= Attic =-", "[0] exits east west", "> go east  (not valid)", "progress 0.25", "50:-0.500"):
        assert words in text
    assert "g0/0" not in text


@pytest.mark.parametrize("which", ["g0/one", "g0/", "g0/-1", "g0/1/0"])
def test_a_member_that_is_no_number_is_refused(run_folder: Path, which: str) -> None:
    with pytest.raises(ConfigError, match=r"names no member: .* such as g0/0"):
        run_view(str(run_folder), which)


def test_a_batch_lists_no_evaluation_of_the_policy_version_with_its_number(run_folder: Path) -> None:
    connection = open_ledger_file(run_folder / "ledger.db")
    task = task_to_proto(make_task()).SerializeToString()
    connection.execute(
        "INSERT INTO slots (slot_id, purpose, batch, position, task, seed, kind, group_size)"
        " VALUES (2, 'EVAL', 3, 0, ?, '11', 'coin_collector/116', 1)",
        (task,),
    )
    connection.execute("INSERT INTO groups (group_id, slot_id, ordinal, issued_s) VALUES ('e0', 2, 0, 0.0)")
    data = trajectory_to_bytes(make_trajectory())
    connection.execute("INSERT INTO trajectories VALUES ('e0', 0, 0, 3, x'00', ?, 2.0)", (data,))
    connection.close()
    assert "e0/0" in run_view(str(run_folder))
    listed = run_view(str(run_folder), "--batch", "3")
    assert "g0/0" in listed
    assert "e0/0" not in listed


def test_a_batch_without_trajectories_says_how_to_list_others(run_folder: Path) -> None:
    with pytest.raises(ConfigError, match="longturn view"):
        run_view(str(run_folder), "--batch", "9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens"], "--tokens would do nothing: .*name it"),
        (["g0", "--last", "1"], "--last would do nothing: all of g0"),
        (["g0/1", "--last", "20"], "--last would do nothing: all of g0/1"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(run_folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_view(str(run_folder), *arguments)


def test_a_recorded_file_has_no_batches(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path / "recorded") as writer:
        writer.write(make_trajectory())
    with pytest.raises(ConfigError, match="--batch would do nothing"):
        run_view(str(tmp_path / "recorded"), "--batch", "0")


def test_a_folder_without_a_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ledger\.db does not exist"):
        run_view(str(tmp_path))


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("not a database at all, but long enough to be looked at")
    with pytest.raises(ConfigError, match="cannot be read as a ledger"):
        run_view(str(tmp_path))


def test_escape_sequences_of_an_observation_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = dataclasses.replace(make_turn(), observation="\x1b[2Jgone")
    trajectory: Trajectory = make_trajectory(turns=(evil,))
    with TrajectoryWriter(tmp_path / "recorded") as writer:
        writer.write(trajectory)
    text = run_view(str(tmp_path / "recorded"), "0")
    assert "\x1b[2J" not in text
    assert "gone" in text
