"""What the launcher's own tables put on command lines."""

from __future__ import annotations

import itertools
from pathlib import Path

from longturn.config import Tree, apply_override
from longturn.launch.command_lines import CommandLines
from longturn.launch.document import LaunchConfig
from longturn.launch.layout import RunLayout
from tests.longturn.launch.prepared import ECHO


def test_knobs_of_the_tasks_are_written_into_the_task_files(tmp_path: Path) -> None:
    tasks = LaunchConfig(ECHO, ["tasks.knobs.admissible_actions=true", "tasks.knobs.observation=grid"]).tasks
    line = CommandLines(RunLayout(tmp_path)).tasks(tasks, tasks.train, tmp_path / "out", "server")
    knobs = [value for word, value in itertools.pairwise(line) if word == "--knob"]
    assert knobs == ["admissible_actions=True", "observation=grid"]


def test_recording_and_preparing_may_lose_as_many_games_as_an_evaluation(tmp_path: Path) -> None:
    config, commands = LaunchConfig(ECHO), CommandLines(RunLayout(tmp_path))
    lines = (
        commands.prepare(tmp_path, "server", max_broken_share=0.25),
        commands.record(config.warmstart, "server", seed=0, max_broken_share=0.25),
    )
    assert all(("--max-broken-share", "0.25") in itertools.pairwise(line) for line in lines)


def test_a_run_folder_of_any_name_reaches_the_daemons(tmp_path: Path) -> None:
    folder = tmp_path / "it's \N{ROCKET}"
    commands = CommandLines(RunLayout(folder))
    line = commands.engine(folder / "policy", "0", None)
    tree: Tree = {}
    for word, value in itertools.pairwise(line):
        if word == "--set":
            apply_override(tree, value)
    assert tree == {"engine": {"model_path": str(folder / "policy"), "weight_version": "0"}}
