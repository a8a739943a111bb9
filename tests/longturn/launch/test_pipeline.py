"""Task sets are kept apart, and gates and progress say what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from longturn.errors import ConfigError
from longturn.launch.document import document_digest, imitation_steps, read_document
from longturn.launch.layout import RunLayout
from longturn.launch.pipeline import check_disjoint, imitation_progress
from longturn.launch.training import TrainingView, waits
from longturn.metrics import MetricsFile
from longturn.records import Task
from longturn.task_file import TaskEntry
from longturn.v1 import status_pb2


def entry(task_id: str) -> TaskEntry:
    return TaskEntry(task=Task(environment="echo", task_id=task_id))


def test_demonstrations_and_training_may_share_tasks() -> None:
    check_disjoint({"warmstart": [entry("a")], "train": [entry("a"), entry("b")], "test": [entry("c")]})


@pytest.mark.parametrize("panel", ["valid", "test"])
def test_a_panel_that_shares_a_task_with_training_is_refused(panel: str) -> None:
    with pytest.raises(ConfigError, match=f"change tasks.{panel}"):
        check_disjoint({"train": [entry("a")], panel: [entry("a")]})


def test_the_progress_of_imitation_is_its_newest_row(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.config.write_text("[imitate]\nsteps = 500\n")
    assert imitation_progress(layout).done == 0
    with MetricsFile(layout.warm_start / "imitation.jsonl") as rows:
        rows.write("imitation_step", 25, {"imitation/loss": 0.5})
        rows.write("imitation_step", 50, {"imitation/loss": 0.25})
    progress = imitation_progress(layout)
    assert (progress.done, progress.total, progress.text) == (50, 500, "loss 0.250")
    with (layout.warm_start / "imitation.jsonl").open("a") as file:
        file.write('{"imitation_step": 75, "imitation/lo')
    assert imitation_progress(layout) == progress


def test_without_a_set_number_of_steps_no_total_is_shown(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[imitate]\nseed = 1\n")
    assert imitation_steps(tmp_path / "config.toml") == 0.0


def test_training_progress_says_how_far_it_is_and_who_waits() -> None:
    wait = status_pb2.Wait(peer="actors", reason="groups", waited_s=1.5)
    answers = {
        "learner": status_pb2.GetStatusResponse(
            daemon="learner",
            phase="waiting",
            waits=[wait],
            values={"learner/episode/success_mean": 0.25},
            facts={"batches": "3/24"},
        ),
        "engine": status_pb2.GetStatusResponse(daemon="engine", phase="serving"),
    }
    progress = TrainingView().progress(answers)
    assert (progress.done, progress.total) == (3, 24)
    assert "success 0.25" in progress.text
    assert "learner waits for actors" in progress.text
    assert waits(answers) == {
        "launcher/answer/learner": 1.0,
        "launcher/answer/engine": 1.0,
        "launcher/wait/learner/actors": 1.5,
    }


def test_training_progress_keeps_its_numbers_while_the_learner_is_silent_or_has_none() -> None:
    view = TrainingView()
    assert view.progress({}).total == 0
    known = status_pb2.GetStatusResponse(
        daemon="learner", values={"learner/episode/success_mean": 0.25}, facts={"batches": "3/24"}
    )
    view.progress({"learner": known})
    silent = view.progress({})
    assert (silent.done, silent.total, silent.text) == (3, 24, "success 0.25  learner does not answer")
    restarted = view.progress({"learner": status_pb2.GetStatusResponse(daemon="learner", phase="starting")})
    assert (restarted.done, restarted.total, restarted.text) == (3, 24, "success 0.25  learner starting")


def test_the_digest_ignores_the_name_of_the_run_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[run]\nname = 'a'\n[learner]\nseed = 0\n")
    first = document_digest(read_document(path, ()))
    assert document_digest(read_document(path, ["run.name=b"])) == first
    assert document_digest(read_document(path, ["learner.seed=1"])) != first


def test_an_override_needs_its_table(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"table\.name=value"):
        read_document(path, ["seed=1"])
