"""What a played panel says, and what it says of nothing."""

from __future__ import annotations

import json

from rich.console import Console

from clients.evaluation import summarise
from clients.panel import Outcome
from clients.progress import score_table
from longturn.errors import EpisodeError, LongturnError
from longturn.task_file import TaskEntry
from tests.longturn.examples import make_task, make_trajectory

ENTRY = TaskEntry(task=make_task(), kind="coin")


def test_a_panel_is_counted_and_broken_episodes_enter_no_mean() -> None:
    outcomes = [
        Outcome(entry=ENTRY, result=make_trajectory(success=True)),
        Outcome(entry=ENTRY, result=make_trajectory()),
        Outcome(entry=ENTRY, result=EpisodeError("gone", reason="EPISODE_LOST")),
    ]
    evaluation = summarise(outcomes)
    assert (evaluation.score.episodes, evaluation.score.success) == (2, 0.5)
    assert evaluation.score.action_valid_share == 0.0
    assert evaluation.failed == {"EPISODE_LOST": 1}
    assert set(evaluation.by_kind) == {"coin"}


def test_a_panel_without_a_result_has_no_success_and_no_means() -> None:
    evaluation = summarise([Outcome(entry=ENTRY, result=LongturnError("no"))])
    printed = json.loads(json.dumps(evaluation.to_json()))
    assert printed["episodes"] == 0
    assert printed["ci95"] == [0.0, 1.0]
    for name in ("success", "score_mean", "return_mean", "turns_mean", "completion_tokens_mean"):
        assert printed[name] is None
    for name in ("format_valid_share", "action_valid_share"):
        assert printed[name] is None
    console = Console(record=True, width=120)
    console.print(score_table(evaluation, title="nothing"))
    assert "0.000" not in console.export_text()


def test_episodes_without_a_turn_have_no_share_of_valid_turns() -> None:
    score = summarise([Outcome(entry=ENTRY, result=make_trajectory(turns=()))]).score
    assert (score.success, score.turns_mean) == (0.0, 0.0)
    assert (score.format_valid_share, score.action_valid_share) == (None, None)
