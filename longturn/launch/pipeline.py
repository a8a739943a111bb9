"""A whole run, phase after phase. What a phase left in the run folder is all that the next one needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longturn.errors import ConfigError, LongturnError
from longturn.launch.broken import judged
from longturn.launch.command_lines import CommandLines
from longturn.launch.daemons import Daemons, Every
from longturn.launch.document import LaunchConfig, imitation_steps
from longturn.launch.layout import CHECK_SETTINGS, RunLayout
from longturn.launch.phases import PhaseLog
from longturn.launch.reuse import check_whole
from longturn.launch.screen import EpisodeCount, Progress, Screen
from longturn.launch.supervisor import OneShot, Supervisor
from longturn.launch.training import learner_summary, train
from longturn.report.evaluations import Evaluation, evaluation_path
from longturn.report.page import broken_games
from longturn.report.summary import GREEDY, SAMPLED
from longturn.task_file import TaskEntry, read_tasks
from longturn.trajectory_file import read_trajectories

_SHOW_EVERY_S = 0.5
_RESTORE = "restore it, or start a new run (--run)"
_STARTED = "server/episode/num_started"


class FinalError(LongturnError):
    """Going on with this run would end the same way; the message says what helps instead."""

    reason = "RUN_IS_OVER"


class GateError(FinalError):
    """The warm start is no start for training."""

    reason = "WARM_START_GATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything a phase works with."""

    layout: RunLayout
    config: LaunchConfig
    supervisor: Supervisor
    daemons: Daemons
    commands: CommandLines
    phases: PhaseLog
    screen: Screen


def warm_start(run: Run) -> None:
    """From nothing to an imitated policy."""
    run.phases.once(CHECK_SETTINGS, lambda: check_settings(run))
    run.phases.once("task files", lambda: write_task_files(run))
    run.phases.once("games", lambda: prepare_games(run))
    run.phases.once("demonstrations", lambda: record_demonstrations(run))
    run.phases.once("imitation", lambda: imitate(run))
    run.phases.once("gate", lambda: check_gate(run))


def whole_run(run: Run) -> None:
    """From nothing to a trained and evaluated policy."""
    warm_start(run)
    model = run.layout.warm_start
    temperatures = (SAMPLED, GREEDY, *run.config.evaluation.other_temperatures)
    run.phases.once("evaluation before", lambda: evaluate(run, "before", model, "0", temperatures))
    run.phases.once("training", lambda: train_from(run, model))
    last = last_version(run.layout)
    run.phases.once(
        "evaluation after", lambda: evaluate(run, "after", run.layout.weights(last), str(last), (SAMPLED, GREEDY))
    )


def train_from(run: Run, model: Path) -> Mapping[str, object]:
    """Train; the warm start must be whole, also in a run that goes on from a checkpoint: the engine starts with it."""
    check_whole(model, mend=_RESTORE)
    return train(run.daemons, run.supervisor, run.screen, run.layout)


def last_version(layout: RunLayout) -> int:
    """The version that training ended with; never the best one."""
    learned = learner_summary(layout)
    version = learned["policy_version"]
    if not isinstance(version, int):
        raise FinalError(
            f"training ended with reason {learned['reason']} before any weights were published; see"
            f" {layout.files('learner').stderr} and start a new run (--run)"
        )
    return version


def check_settings(run: Run) -> Mapping[str, object]:
    """Ask every daemon whether it takes its settings, before anything is started in earnest."""
    run.supervisor.run_all(
        [one_shot(run, f"check-{name}", command) for name, command in run.commands.dry_runs().items()]
    )
    return {}


def write_task_files(run: Run) -> Mapping[str, object]:
    """Write all task files; the panels must share no task with what is trained on."""
    server, config = run.daemons.env_server(), run.config.tasks
    shots = [
        one_shot(
            run,
            f"tasks-{name}",
            run.commands.tasks(config, task_set, run.layout.tasks(name), server),
            f"tasks.{name}.mix",
        )
        for name, task_set in config.sets().items()
    ]
    run.supervisor.run_all(shots)
    entries = {name: read_tasks(run.layout.tasks(name)) for name in config.sets()}
    check_disjoint(entries)
    return {name: len(listed) for name, listed in entries.items()}


def check_disjoint(entries: Mapping[str, Sequence[TaskEntry]]) -> None:
    """Raise ConfigError if a panel shares a task with another set; demonstrations and training may share."""
    seen: dict[str, str] = {}
    for name, listed in entries.items():
        for entry in listed:
            earlier = seen.setdefault(entry.task.task_id, name)
            if earlier != name and {earlier, name} != {"warmstart", "train"}:
                raise ConfigError(f"task {entry.task.task_id} is in the sets {earlier} and {name}; change tasks.{name}")


def prepare_games(run: Run) -> Mapping[str, object]:
    """Make what the demonstrations need, such as generated games."""
    if run.config.tasks.warmstart.prepare:
        total = len(read_tasks(run.layout.tasks("warmstart")))
        with_server_count(run, "preparing games", prepare_shot(run, "warmstart"), total)
    return {}


def prepare_shot(run: Run, name: str) -> OneShot:
    """The command that makes what the episodes of a task set need."""
    share = run.config.evaluation.max_broken_share
    command = run.commands.prepare(run.layout.tasks(name), run.daemons.env_server(), max_broken_share=share)
    return one_shot(run, f"prepare-{name}", command, f"tasks.{name}")


def record_demonstrations(run: Run) -> Mapping[str, object]:
    """Record demonstrations."""
    config = run.config.warmstart
    command = run.commands.record(
        config,
        run.daemons.env_server(),
        seed=run.config.run.seed,
        max_broken_share=run.config.evaluation.max_broken_share,
    )
    shot = one_shot(run, "record", command, "[warmstart]")
    with_server_count(run, "recording demonstrations", shot, config.num_episodes)
    return {"num_episodes": sum(1 for _ in read_trajectories(run.layout.demonstrations))}


def imitate(run: Run) -> Mapping[str, object]:
    """Imitate the demonstrations, and make the other sets' games meanwhile: an imitation keeps one core busy.

    Shows the newest row of the imitation's measurements.
    """
    # What an interrupted imitation left would be shown as progress of this one.
    shutil.rmtree(run.layout.warm_start, ignore_errors=True)
    every = Every(_SHOW_EVERY_S)

    def show() -> None:
        if every.is_due():
            run.screen.show(imitation_progress(run.layout))

    imitation = one_shot(run, "imitate", run.commands.imitate(seed=run.config.run.seed))
    sets = {name: task_set for name, task_set in run.config.tasks.sets().items() if name != "warmstart"}
    games = [prepare_shot(run, name) for name, task_set in sets.items() if task_set.prepare]
    run.supervisor.run_all([imitation, *games], each_tick=show)
    return {"model": str(run.layout.warm_start)}


def imitation_progress(layout: RunLayout) -> Progress:
    """What the last complete row says; the total is the setting that the imitation was given."""
    path = layout.warm_start / "imitation.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    # The last line may be half written.
    lines = text[: text.rfind("\n") + 1].splitlines()
    row = json.loads(lines[-1]) if lines else {}
    loss = row.get("imitation/loss")
    return Progress(
        phase="imitating demonstrations",
        done=row.get("imitation_step", 0),
        total=imitation_steps(layout.config),
        text="" if loss is None else f"loss {loss:.3f}",
    )


def check_gate(run: Run) -> Mapping[str, object]:
    """Play the training tasks with the warm start; refuse what meets no reward there or has nothing left to learn."""
    config = run.config.warmstart
    success = play(run, "gate", "train", config.gate_temperature, run.layout.warm_start, "0").success
    if success < config.gate_min_success:
        raise _gate_error(run, success, f"gate_min_success = {config.gate_min_success:g}", "raise")
    if success > config.gate_max_success:
        raise _gate_error(run, success, f"gate_max_success = {config.gate_max_success:g}", "lower")
    return {"success": success}


def _gate_error(run: Run, success: float, bound: str, way: str) -> GateError:
    games = "easier" if way == "raise" else "harder"
    return GateError(
        f"the warm start wins {success:.0%} of the training games, beyond warmstart.{bound}, and --resume would say so"
        f" again: start a new run (--run), for example {way} imitate.steps or warmstart.num_episodes, or choose {games}"
        f" games in tasks.train; to train from this warm start all the same, change the bound in {run.layout.config},"
        " then --resume"
    )


def evaluate(run: Run, point: str, model: Path, version: str, temperatures: tuple[float, ...]) -> Mapping[str, object]:
    """Play the test panel at each temperature; a play that an earlier start finished is not repeated."""
    results: dict[str, object] = {}
    for temperature in temperatures:
        results[f"{temperature:g}"] = play(run, point, "test", temperature, model, version).success
    return results


def play(run: Run, point: str, panel: str, temperature: float, model: Path, version: str) -> Evaluation:
    """Play a panel once and return the result; BrokenEvaluationError if too many of its games broke."""
    config, out = run.config.evaluation, evaluation_path(run.layout.folder, point, temperature)
    title = f"evaluation {point}, " + ("greedy" if temperature == GREEDY else f"temperature {temperature:g}")
    if not out.exists():
        check_whole(model, mend=_RESTORE)
        addresses = {"engine": run.daemons.engine(model, version), "env_server": run.daemons.env_server()}
        key = run.layout.engine_key.read_text(encoding="utf-8")
        shot = OneShot(
            name=f"eval-{point}",
            command=run.commands.evaluate(config, panel, temperature, out, addresses),
            files=run.layout.files(f"eval-{point}"),
            variables={"LONGTURN_ENGINE_KEY": key},
            settings="[evaluation]",
            result=out,
        )
        with_server_count(run, title, shot, min(config.num_tasks, len(read_tasks(run.layout.tasks(panel)))))
        try:
            run.daemons.confirm_engine(version)
        except LongturnError:
            # Other weights played a part of it; the next start plays it again.
            out.unlink()
            raise
    result = judged(out, max_broken_share=config.max_broken_share)
    if result.broken_by_task:
        run.screen.say(f"{title}: {broken_games(result.as_summary())} of {result.num_tasks} games, which are no result")
    return result


def with_server_count(run: Run, title: str, shot: OneShot, total: int) -> None:
    """Run a one-shot command that plays episodes; progress is what the env server counts meanwhile."""
    every, count = Every(_SHOW_EVERY_S), EpisodeCount()
    count.note(_num_started(run))

    def show() -> None:
        if every.is_due():
            run.screen.show(Progress(phase=title, done=min(total, count.note(_num_started(run))), total=total))

    run.supervisor.run(shot, each_tick=show)


def one_shot(run: Run, name: str, command: Sequence[str], settings: str = "") -> OneShot:
    """A command of this run, its output in the run folder."""
    return OneShot(name=name, command=command, files=run.layout.files(name), settings=settings)


def _num_started(run: Run) -> float | None:
    """Episodes that the env server has started; None while it does not answer."""
    answer = run.daemons.look("env_server")
    return None if answer is None else answer.values.get(_STARTED, 0.0)
