"""A warm start is taken over from runs of equal settings only."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from longturn.completion import write_marker
from longturn.errors import ConfigError, LongturnError
from longturn.launch.layout import RunLayout
from longturn.launch.pipeline import whole_run
from longturn.launch.session import launch, new_run

ECHO = Path(__file__).with_name("echo.toml")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """The folder of a run that passed its gate."""
    monkeypatch.chdir(tmp_path)
    layout = new_run(ECHO, name="source", seed=3, overrides=[], command="train")
    for path in (
        layout.tasks("train"),
        layout.warm_start / "config.json",
        layout.phases / "gate.json",
        layout.phases / "evaluation before.json",
        layout.folder / "evaluations" / "before.t1.json",
        layout.folder / "evaluations" / "after.t1.json",
        layout.phases / "training.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    write_marker(layout.warm_start, {})
    return layout


def other(source: RunLayout, *overrides: str, seed: int = 3) -> RunLayout:
    return new_run(ECHO, name="other", seed=seed, overrides=list(overrides), command="train", warm_start=source.folder)


def test_everything_before_training_is_taken_over_and_nothing_after(source: RunLayout) -> None:
    taken = other(source, "learner.control.permute_advantages=true")
    assert (taken.warm_start / "config.json").read_text() == "config.json"
    assert taken.tasks("train").exists()
    assert sorted(path.name for path in taken.phases.iterdir()) == ["evaluation before.json", "gate.json"]
    assert [path.name for path in (taken.folder / "evaluations").iterdir()] == ["before.t1.json"]


@pytest.mark.parametrize(
    ("overrides", "seed", "message"),
    [
        (["imitate.steps=7"], 3, r"other settings in \[imitate\]"),
        ([], 4, "was made with seed 3, not 4; give --seed 3"),
    ],
)
def test_a_warm_start_of_other_settings_is_refused(
    source: RunLayout, overrides: list[str], seed: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        other(source, *overrides, seed=seed)
    assert not (source.folder.parent / "other").exists()


@pytest.mark.parametrize("file", ["config.json", "COMPLETE"])
def test_a_warm_start_that_is_not_whole_is_refused_and_leaves_no_run(source: RunLayout, file: str) -> None:
    (source.warm_start / file).unlink()
    with pytest.raises(ConfigError, match=rf"is damaged: .*{file}.*restore it, or leave --warm-start out"):
        other(source)
    assert not (source.folder.parent / "other").exists()


def test_a_warm_start_does_not_need_what_the_launcher_noted_of_its_run(source: RunLayout) -> None:
    source.facts.unlink()
    assert other(source).warm_start.is_dir()


def test_a_warm_start_whose_settings_are_gone_is_refused(source: RunLayout) -> None:
    source.source.unlink()
    with pytest.raises(ConfigError, match=r"launch\.toml is missing.*restore it, or leave --warm-start out"):
        other(source)


def test_a_run_does_not_go_on_with_a_warm_start_that_is_not_whole(source: RunLayout) -> None:
    taken = other(source)
    (taken.warm_start / "config.json").write_text("{")
    for phase in ("check settings", "task files", "games", "demonstrations", "imitation", "gate", "evaluation before"):
        (taken.phases / f"{phase}.json").write_text(json.dumps({"result": {}}))
    with pytest.raises(LongturnError, match=r"config\.json is missing or does not match.*restore it, or start a new"):
        launch(taken, whole_run, Console(file=io.StringIO()), command="train")


def test_a_warm_start_that_did_not_pass_its_gate_is_refused(source: RunLayout) -> None:
    (source.phases / "gate.json").unlink()
    with pytest.raises(ConfigError, match="no warm start that passed its gate"):
        other(source)
