"""A panel's broken games are no result, up to a bound; beyond it a play never counts, however often it is met."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from clients.evaluate import write_results
from clients.evaluation import summarise
from clients.panel import Outcome
from longturn.completion import write_marker
from longturn.errors import EpisodeLostError
from longturn.launch.broken import BrokenEvaluationError, judged
from longturn.launch.command_lines import CommandLines
from longturn.launch.config import EvaluationConfig
from longturn.launch.daemons import Daemons
from longturn.launch.document import LaunchConfig, read_document, run_document
from longturn.launch.layout import RunLayout
from longturn.launch.phases import PhaseLog
from longturn.launch.pipeline import Run, play
from longturn.launch.screen import Screen
from longturn.launch.supervisor import Supervisor
from longturn.records import KnobValue, Task
from longturn.report.evaluations import Evaluation, evaluation_path
from longturn.task_file import TaskEntry, write_tasks
from tests.longturn.launch.prepared import ECHO, broke, won

NUM_TASKS = 4


class RandomDaemons(Daemons):
    """Plays the panel with the random policy: what an engine says does not matter here."""

    def engine(self, model: Path, version: str) -> str:
        return "random"


class RandomCommands(CommandLines):
    """Leaves out what only an engine is told."""

    def evaluate(
        self, config: EvaluationConfig, panel: str, temperature: float, out: Path, addresses: Mapping[str, str]
    ) -> Sequence[str]:
        command = list(super().evaluate(config, panel, temperature, out, addresses))
        for option in ("--temperature", "--max-new-tokens", "--max-episode-tokens"):
            place = command.index(option)
            del command[place : place + 2]
        return command


def write_play(folder: Path, panel: list[dict[str, object]]) -> Path:
    path = evaluation_path(folder, "before", 1.0)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"turns_mean": 3.0, "score_mean": 0.5, "panel": panel}))
    return path


def test_few_broken_games_are_left_out_and_kept_with_their_reasons(tmp_path: Path) -> None:
    path = write_play(tmp_path, [won(0), won(1, success=False), won(2), broke(3, "STEP_TIMEOUT")])
    result = judged(path, max_broken_share=0.25)
    assert result.success == pytest.approx(2 / 3)
    assert result.broken_by_task == {"t3#0": "STEP_TIMEOUT"}
    assert path.exists()


def test_too_many_are_named_and_the_play_is_put_aside(tmp_path: Path) -> None:
    path = write_play(tmp_path, [*map(won, range(3)), broke(7, "WORKER_CRASHED"), broke(8, "STEP_TIMEOUT")])
    with pytest.raises(BrokenEvaluationError) as caught:
        judged(path, max_broken_share=0.3)
    for words in ("2 of 5 games", "evaluation.max_broken_share = 0.3", "t7#0 WORKER_CRASHED, t8#0 STEP"):
        assert words in str(caught.value)
    assert [path.name for path in path.parent.iterdir()] == ["before.t1.rejected"]


def test_a_panel_of_which_every_game_broke_names_where_to_look(tmp_path: Path) -> None:
    outcomes = [Outcome(entry=faulty_task(index), result=EpisodeLostError("gone")) for index in range(2)]
    path = evaluation_path(tmp_path, "before", 1.0)
    path.parent.mkdir()
    write_results(path, summarise(outcomes), outcomes, {})
    with pytest.raises(BrokenEvaluationError) as caught:
        judged(path, max_broken_share=0.5)
    logs = tmp_path / "logs"
    for words in ("all 2 games broke: faulty/test/000000#0 EPISODE_LOST", f"{logs / 'env_server.log'} and {logs}"):
        assert words in str(caught.value)
    assert [path.name for path in path.parent.iterdir()] == ["before.t1.rejected"]


def test_a_long_list_of_broken_games_is_cut(tmp_path: Path) -> None:
    path = write_play(tmp_path, [broke(index, "STEP_TIMEOUT") for index in range(10)])
    with pytest.raises(BrokenEvaluationError, match="t7#0 STEP_TIMEOUT, and 2 more;"):
        judged(path, max_broken_share=0.5)


def faulty_task(index: int) -> TaskEntry:
    """The first one breaks."""
    knobs: dict[str, KnobValue] = {"fail_at_turn": 2} if index == 0 else {}
    return TaskEntry(task=Task(environment="faulty", task_id=f"faulty/test/{index:06d}", knobs=knobs))


def make_run(folder: Path, supervisor: Supervisor, said: io.StringIO, max_broken_share: float) -> Run:
    """A run that serves the faulty environment; one game of its test panel breaks."""
    layout = RunLayout(folder)
    overrides = ['env_server.environments=["faulty"]', f"evaluation.max_broken_share={max_broken_share}"]
    document = run_document(read_document(ECHO, overrides), layout, seed=0)
    layout.config.write_text(tomli_w.dumps(document))
    layout.engine_key.write_text("key")
    (folder / "model").mkdir(exist_ok=True)
    write_marker(folder / "model", {})
    no_knobs: dict[str, KnobValue] = {}
    knobs = [{"fail_at_turn": 2}, *[no_knobs] * (NUM_TASKS - 1)]
    tasks = [
        Task(environment="faulty", task_id=f"faulty/test/{index:06d}", knobs=own) for index, own in enumerate(knobs)
    ]
    write_tasks(layout.tasks("test"), [TaskEntry(task=task) for task in tasks])
    commands, config = RandomCommands(layout), LaunchConfig(layout.config)
    return Run(
        layout=layout,
        config=config,
        supervisor=supervisor,
        daemons=RandomDaemons(supervisor, commands, layout, config.run, say=print),
        commands=commands,
        phases=PhaseLog(layout.phases, say=print),
        screen=Screen(Console(file=said, width=200)),
    )


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    with Supervisor(wait=wait, say=print, grace_s=10.0) as supervisor:
        yield supervisor


def play_before(run: Run) -> Evaluation:
    return play(run, "before", "test", 1.0, run.layout.folder / "model", "0")


def test_the_rule_is_the_same_for_a_play_just_made_and_for_one_of_an_earlier_start(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    strict, said = make_run(tmp_path, supervisor, io.StringIO(), 0.02), io.StringIO()
    with pytest.raises(BrokenEvaluationError, match="faulty/test/000000#0") as first:
        play_before(strict)
    supervisor.close()
    path = evaluation_path(tmp_path, "before", 1.0)
    # As if the launcher had been killed before it judged the play.
    path.with_suffix(".rejected").rename(path)
    with pytest.raises(BrokenEvaluationError) as second:
        play_before(strict)
    assert str(second.value) == str(first.value)
    path.with_suffix(".rejected").rename(path)
    result = play_before(make_run(tmp_path, supervisor, said, 0.25))
    assert (len(result.success_by_task), list(result.broken_by_task)) == (NUM_TASKS - 1, ["faulty/test/000000#0"])
    reason = result.broken_by_task["faulty/test/000000#0"]
    assert f"evaluation before, temperature 1: 1 broken ({reason} 1) of 4 games" in said.getvalue()
