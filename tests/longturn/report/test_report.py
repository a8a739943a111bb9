"""The report is made from a run folder alone, written by the same writers that a run uses."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from learner.ledger.schema import open_ledger_file
from longturn.cli import main
from longturn.codec import task_to_proto, trajectory_to_bytes
from longturn.disk import DiskError
from longturn.errors import ConfigError
from longturn.launch.table import show_result
from longturn.metrics import MetricsFile
from longturn.report.curves import waits
from longturn.report.evaluations import evaluation_path
from longturn.report.ledger import read_batches
from longturn.report.page import build_page, write_report
from longturn.report.run_folder import DAMAGED, read_metrics, series
from longturn.report.summary import build_summary, write_summary
from tests.longturn.examples import make_task, make_trajectory
from tests.support.full_disk import largest_file

NUM_BATCHES = 4


def write_ledger(folder: Path) -> None:
    """Two groups of two members per batch; the first is kept. Batch 3 was skipped."""
    connection = open_ledger_file(folder / "ledger.db")
    task = task_to_proto(make_task()).SerializeToString()
    for batch in range(NUM_BATCHES):
        outcome = "SKIPPED" if batch == NUM_BATCHES - 1 else "TRAINED"
        connection.execute(
            "INSERT INTO batches (batch, run_epoch, training_step, outcome, recorded_s) VALUES (?, 1, ?, ?, 0.0)",
            (batch, batch + 1, outcome),
        )
        for position in range(2):
            slot, group = batch * 2 + position, f"g{batch}{position}"
            connection.execute(
                "INSERT INTO slots (slot_id, purpose, batch, position, task, seed, kind, group_size)"
                " VALUES (?, 'TRAIN', ?, ?, ?, '1', 'coin_collector/116', 2)",
                (slot, batch, slot, task),
            )
            connection.execute(
                "INSERT INTO groups (group_id, slot_id, ordinal, issued_s, state) VALUES (?, ?, 0, 0.0, 'COMPLETE')",
                (group, slot),
            )
            for member_index in range(2):
                trajectory = make_trajectory(group_id=group, member_index=member_index, success=member_index == 1)
                connection.execute(
                    "INSERT INTO trajectories VALUES (?, ?, 0, 0, x'00', ?, 0.0)",
                    (group, member_index, trajectory_to_bytes(trajectory)),
                )
            verdict = "kept" if position == 0 else "zero_variance"
            connection.execute("INSERT INTO verdicts VALUES (?, ?, ?, 0.25)", (batch, group, verdict))
    connection.close()


def write_metrics(folder: Path) -> None:
    with MetricsFile(folder / "metrics" / "learner.jsonl") as rows:
        for batch in range(NUM_BATCHES):
            values = {
                "learner/episode/success_mean": 0.1 * batch,
                "learner/entropy/token_mean": 0.5,
                "learner/epo/corridor_low": 0.0,
                "learner/epo/corridor_high": 1.0,
                "learner/epo/reference": 0.5 if batch else None,
                "learner/group/kept": 1,
            }
            rows.write("batch", batch, values)
        rows.write("policy_version", 2, {"training_step": 2, "learner/eval/success_mean": 0.25})
    with MetricsFile(folder / "metrics" / "launcher.jsonl") as rows:
        rows.write("look", 0, {"launcher/answer/learner": 1.0, "launcher/wait/learner/actors": 1.5})
        rows.write("look", 1, {"launcher/answer/learner": 1.0})


def write_evaluation(folder: Path, point: str, temperature: float, successes: list[bool]) -> None:
    panel = [{"task_id": f"t{index}", "seed": 0, "success": success} for index, success in enumerate(successes)]
    path = evaluation_path(folder, point, temperature)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"turns_mean": 40.0, "score_mean": 0.5, "panel": panel}))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A small finished run."""
    write_ledger(tmp_path)
    write_metrics(tmp_path)
    for point, num_won in (("before", 2), ("after", 6)):
        write_evaluation(tmp_path, point, 1.0, [index < num_won for index in range(8)])
        write_evaluation(tmp_path, point, 0.0, [index < 4 for index in range(8)])
    write_evaluation(tmp_path, "before", 0.5, [index < 3 for index in range(8)])
    (tmp_path / "launch.json").write_text(json.dumps({"run": "small <run>", "seed": 3, "restarts": {"engine": 1}}))
    (tmp_path / "learner_summary.json").write_text(
        json.dumps({"run_id": "r", "policy_version": 3, "used_privileged_progress": True, "reason": "COMPLETED"})
    )
    (tmp_path / "phases").mkdir()
    (tmp_path / "phases" / "spent.json").write_text(json.dumps({"training": 61.0}))
    return tmp_path


def test_the_summary_holds_success_before_and_after_with_intervals(run_folder: Path) -> None:
    summary = build_summary(run_folder)
    assert summary["held_out"]["before"]["success"] == 0.25
    assert summary["held_out"]["after"]["success"] == 0.75
    assert summary["held_out"]["after"]["episodes"] == 8
    assert summary["held_out"]["paired"]["change"] == 0.5
    assert summary["held_out_greedy"]["paired"]["change"] == 0.0
    assert [play["temperature"] for play in summary["warm_start_temperatures"]] == [0.0, 0.5, 1.0]
    assert summary["seed"] == 3
    assert summary["phases_s"] == {"training": 61.0}


def test_the_summary_counts_what_entered_an_update(run_folder: Path) -> None:
    summary = build_summary(run_folder)
    assert summary["trained_episodes"] == 6
    assert summary["played_episodes"] == 16
    assert summary["trained_turns_mean"] == 2.0
    assert (summary["batches_trained"], summary["batches_skipped"]) == (3, 1)


def test_batches_are_read_with_their_verdicts(run_folder: Path) -> None:
    batches = read_batches(run_folder)
    assert [(batch.num_groups, batch.num_kept, batch.success_mean) for batch in batches] == [(2, 1, 0.5)] * NUM_BATCHES


def test_an_unfinished_run_has_a_summary_with_open_ends(tmp_path: Path) -> None:
    write_evaluation(tmp_path, "before", 1.0, [True, False])
    summary = build_summary(tmp_path)
    assert summary["held_out"]["after"] is None
    assert summary["held_out"]["paired"] is None
    assert summary["trained_turns_mean"] is None


def test_the_report_is_one_file_that_shows_curves_and_says_what_was_privileged(run_folder: Path) -> None:
    write_summary(run_folder)
    text = write_report(run_folder).read_text()
    assert "Run small &lt;run&gt;" in text
    for words in (
        "Entropy and the EPO corridor",
        "privileged progress",
        "lowering the warm start&#x27;s temperature to 0 alone would have given 25 points",
        "<td>learner</td><td>actors</td><td class=n>50 %</td>",
        "Not measured in this run",
    ):
        assert words in text
    assert text.count("<svg") == 4
    for outside in ("<script", "src=", "@import", "<link"):
        assert outside not in text


def test_equal_folders_give_equal_reports(run_folder: Path) -> None:
    write_summary(run_folder)
    assert build_page(run_folder) == build_page(run_folder)


def test_a_report_without_a_summary_says_how_to_finish_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume"):
        build_page(tmp_path)


def test_a_row_cut_short_by_a_kill_is_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "learner.jsonl"
    path.parent.mkdir()
    path.write_text('{"batch": 0, "x": 1.0}\n{"batch": 1, "x{"batch": 1, "x": 5.0}\n{"batch": 1, "x": 2.0}\n')
    rows = read_metrics(tmp_path)["learner"]
    assert rows[1] is DAMAGED
    path.write_bytes(path.read_bytes() + b'5\n"\xff\n')
    assert read_metrics(tmp_path)["learner"][3:] == [DAMAGED, DAMAGED]
    assert series(rows, axis="batch", name="x").values == (1.0, 2.0)


def test_a_repeated_position_counts_once_and_the_later_row_wins() -> None:
    found = series([{"batch": 1, "x": 1}, {"batch": 0, "x": 3}, {"batch": 1, "x": 2}], axis="batch", name="x")
    assert (found.positions, found.values) == ((0.0, 1.0), (3.0, 2.0))


def test_waits_are_shares_of_the_looks_that_were_answered() -> None:
    rows = [
        {"look": 0, "launcher/answer/actors": 1.0, "launcher/wait/actors/engine": 1.0},
        {"look": 1, "launcher/answer/actors": 1.0},
        {"look": 2},
        DAMAGED,
    ]
    assert waits(rows) == {("actors", "engine"): 0.5}


def test_broken_games_enter_no_mean_and_are_shown_with_their_reasons(run_folder: Path) -> None:
    path = evaluation_path(run_folder, "after", 1.0)
    content = json.loads(path.read_text())
    for row in content["panel"][6:]:
        del row["success"]
        row["failure"] = "WORKER_CRASHED"
    path.write_text(json.dumps(content))
    after = write_summary(run_folder)["held_out"]["after"]
    assert (after["success"], after["episodes"]) == (1.0, 6)
    assert (after["broken_episodes"], after["broken_by_reason"]) == (2, {"WORKER_CRASHED": 2})
    assert "6 episodes, 2 broken (WORKER_CRASHED 2), 40.0 turns" in write_report(run_folder).read_text()
    seen = io.StringIO()
    show_result(Console(file=seen, width=200), write_summary(run_folder), "report.html")
    assert "6 games, 2 broken (WORKER_CRASHED 2), 40.0 turns" in seen.getvalue()


def test_a_play_of_which_nothing_is_left_is_named(tmp_path: Path) -> None:
    path = evaluation_path(tmp_path, "before", 1.0)
    path.parent.mkdir()
    row = {"task_id": "t0", "seed": 0, "failure": "STEP_TIMEOUT"}
    path.write_text(json.dumps({"turns_mean": 0.0, "score_mean": 0.0, "panel": [row]}))
    with pytest.raises(ConfigError, match=r"before\.t1\.json: every game of the panel broke"):
        build_summary(tmp_path)


@pytest.mark.parametrize("name", ["summary.json", "launch.json", "learner_summary.json", "phases/spent.json"])
def test_a_file_that_was_cut_short_is_named(run_folder: Path, name: str) -> None:
    write_summary(run_folder)
    (run_folder / name).write_text('{"run": ')
    with pytest.raises(ConfigError, match=f"{name} is damaged"):
        build_page(run_folder) if name == "summary.json" else build_summary(run_folder)


def test_a_report_that_finds_no_room_is_one_clear_line(tmp_path: Path) -> None:
    write_evaluation(tmp_path, "before", 1.0, [True, False])
    with largest_file(16), pytest.raises(DiskError, match=r"summary\.json: File too large; raise the limit"):
        write_summary(tmp_path)
    write_summary(tmp_path)
    with largest_file(16), pytest.raises(DiskError, match=r"report\.html: File too large; raise the limit"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must refuse; what it says."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["longturn", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        return capsys.readouterr().err

    return run


def write_row(folder: Path, data: bytes) -> None:
    connection = open_ledger_file(folder / "ledger.db")
    connection.execute("UPDATE trajectories SET trajectory = ?", (data,))
    connection.close()


def overwrite(folder: Path, data: bytes) -> None:
    for path in folder.glob("ledger.db*"):
        path.unlink()
    (folder / "ledger.db").write_bytes(data)


@pytest.mark.parametrize("damage", [write_row, overwrite])
@pytest.mark.parametrize("command", ["report", "view"])
def test_a_damaged_ledger_is_named(
    run_folder: Path, damage: Callable[[Path, bytes], None], command: str, refused: Refused
) -> None:
    damage(run_folder, b"\xff" * 5000)
    said = refused(command, run_folder)
    assert f"longturn: {run_folder / 'ledger.db'} cannot be read as a ledger: " in said
    assert "restore it" in said


def test_checkpoints_without_their_ledger_are_told(run_folder: Path, refused: Refused) -> None:
    (run_folder / "ledger.db").unlink()
    (run_folder / "checkpoints" / "step-000003").mkdir(parents=True)
    assert "ledger.db is missing beside checkpoints" in refused("report", run_folder)


@pytest.mark.parametrize("name", ["", "absent"])
def test_a_folder_that_is_no_run_gets_no_report(tmp_path: Path, name: str, refused: Refused) -> None:
    assert "is no run folder: it holds none of config.toml, ledger.db" in refused("report", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_of_another_format_is_named(tmp_path: Path) -> None:
    path = evaluation_path(tmp_path, "before", 1.0)
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"before\.t1\.json is not what"):
        build_summary(tmp_path)
