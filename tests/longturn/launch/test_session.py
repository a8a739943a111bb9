"""How a start of the launcher ends when something is wrong, and what it says helps."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from longturn.disk import DiskError
from longturn.errors import ConfigError, LongturnError
from longturn.launch.layout import RunLayout
from longturn.launch.pipeline import FinalError, GateError, last_version, warm_start
from longturn.launch.session import launch, new_run
from tests.longturn.launch.prepared import ECHO, broke, prepared_run, won
from tests.support.full_disk import largest_file

ONE_OF_FOUR = (won(0), *(won(index, success=False) for index in (1, 2, 3)))


def go_on(layout: RunLayout) -> str:
    """Resume the run up to its gate; what the user saw."""
    seen = io.StringIO()
    assert launch(layout, warm_start, Console(file=seen, width=400), command="warmstart") == 0
    return seen.getvalue()


def test_a_gate_that_refuses_says_what_helps_and_not_to_resume_unchanged(tmp_path: Path) -> None:
    layout = prepared_run(tmp_path, ONE_OF_FOUR, "warmstart.gate_min_success=0.5")
    with pytest.raises(GateError) as caught:
        go_on(layout)
    text = str(caught.value)
    assert "go on with" not in text
    for words in ("wins 25%", "warmstart.gate_min_success = 0.5", "raise imitate.steps", "(--run)", "easier games"):
        assert words in text
    assert f"change the bound in {layout.config}" in text


def test_a_gate_that_finds_nothing_left_to_learn_says_the_opposite(tmp_path: Path) -> None:
    layout = prepared_run(tmp_path, [won(0), won(1)], "warmstart.gate_max_success=0.9")
    with pytest.raises(GateError, match=r"gate_max_success = 0\.9.*lower imitate\.steps.*harder games"):
        go_on(layout)


def test_a_changed_setting_is_checked_again_obeyed_and_told(tmp_path: Path) -> None:
    layout = prepared_run(tmp_path, ONE_OF_FOUR, "warmstart.gate_min_success=0.5")
    layout.config.write_text(layout.config.read_text().replace("gate_min_success = 0.5", "gate_min_success = 0.1"))
    seen = go_on(layout)
    assert "config.toml was changed; finished phases are not repeated" in seen
    assert "check settings: done in" in seen
    assert "imitation: done before" in seen
    facts = json.loads((layout.folder / "summary.json").read_text())
    assert facts["settings_changed"] is True
    assert "was changed" not in go_on(layout)


def test_a_setting_changed_for_the_worse_costs_the_run_nothing(tmp_path: Path) -> None:
    layout = prepared_run(tmp_path, ONE_OF_FOUR)
    layout.config.write_text(layout.config.read_text().replace("num_batches = 3", "num_batch = 3"))
    with pytest.raises(LongturnError, match=r"unknown setting, did you mean num_batches\?") as caught:
        go_on(layout)
    assert "(this run's settings: " in str(caught.value)
    assert layout.config.exists()


def test_a_panel_with_too_many_broken_games_names_them_and_may_be_played_again(tmp_path: Path) -> None:
    layout = prepared_run(tmp_path, [won(0), broke(1, "STEP_TIMEOUT")])
    with pytest.raises(LongturnError, match="t1#0 STEP_TIMEOUT") as caught:
        go_on(layout)
    assert caught.value.reason == "EVALUATION_BROKEN"
    assert str(caught.value).endswith(f"go on with: longturn warmstart --resume {layout.folder}")


def test_a_run_without_weights_is_over(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    (tmp_path / "learner_summary.json").write_text(json.dumps({"policy_version": None, "reason": "NO_GROUPS"}))
    with pytest.raises(FinalError, match=r"NO_GROUPS before any weights.*start a new run"):
        last_version(layout)


def test_a_full_disk_is_one_clear_line_and_the_run_may_go_on(tmp_path: Path) -> None:
    layout = prepared_run(tmp_path, ONE_OF_FOUR)
    with largest_file(16), pytest.raises(LongturnError, match=r"spent\.json: File too large; raise") as caught:
        go_on(layout)
    assert caught.value.reason == "DISK_FULL"
    assert "go on with: longturn warmstart --resume" in str(caught.value)
    assert "gate: done in" in go_on(layout)


def test_a_new_run_on_a_full_disk_leaves_no_half_run(tmp_path: Path) -> None:
    overrides = [f"run.folder={tmp_path}/runs"]
    with largest_file(16), pytest.raises(DiskError, match=r"launch\.toml: File too large"):
        new_run(ECHO, name=None, seed=None, overrides=overrides, command="train")
    assert new_run(ECHO, name=None, seed=None, overrides=overrides, command="train").config.exists()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("launch.json cut short", r"launch\.json is damaged .*made again from the settings"),
        ("launch.json", r"launch\.json: No such file.*made again from the settings"),
        ("launch.toml and launch.json", r"launch\.json: No such file.*made again from the settings"),
        ("engine.key", r"engine\.key was missing: made again"),
    ],
)
def test_what_the_launcher_wrote_itself_is_made_again_and_told(tmp_path: Path, damage: str, told: str) -> None:
    layout = prepared_run(tmp_path, ONE_OF_FOUR)
    if damage.endswith("cut short"):
        layout.facts.write_text('{"run": ')
    else:
        for name in damage.split(" and "):
            (layout.folder / name).unlink()
    assert re.search(told, go_on(layout))
    assert "made again" not in go_on(layout)
    facts = json.loads((layout.folder / "summary.json").read_text())
    assert (facts["run"], facts["seed"]) == ("echo", 0)
    assert layout.engine_key.stat().st_mode & 0o777 == 0o600


def test_an_existing_run_names_the_command_that_goes_on(tmp_path: Path) -> None:
    overrides = [f"run.folder={tmp_path}/runs"]
    new_run(ECHO, name=None, seed=None, overrides=overrides, command="warmstart")
    with pytest.raises(ConfigError, match="go on with `longturn warmstart --resume"):
        new_run(ECHO, name=None, seed=None, overrides=overrides, command="warmstart")
