"""The training phase: learner and actors play and learn until the learner ends; the launcher looks on."""

from __future__ import annotations

import json
from collections.abc import Mapping

from longturn.launch.crew import Crew, Every
from longturn.launch.layout import RunLayout
from longturn.launch.screen import Progress, Screen
from longturn.launch.supervisor import DaemonFailedError, Supervisor
from longturn.metrics import MetricsFile
from longturn.v1 import status_pb2

_LOOK_EVERY_S = 2.0
_DAEMONS = ("env_server", "engine", "actors", "learner")
_SHOWN = (
    ("success", "learner/episode/success_mean", "{:.2f}"),
    ("turns", "learner/episode/turns_mean", "{:.0f}"),
    ("kept", "learner/group/kept", "{:.0f}"),
    ("entropy", "learner/entropy/token_mean", "{:.3f}"),
    ("lag", "learner/lag/head", "{:.0f}"),
    ("held-out", "learner/eval/success_mean", "{:.2f}"),
)


def train(crew: Crew, supervisor: Supervisor, screen: Screen, layout: RunLayout) -> Mapping[str, object]:
    """Run learner and actors to the learner's end; the env server and the engine are used as they are."""
    crew.start_training(crew.engine(layout.warm_start, "0"))
    crew.weights_changed()
    every, num_looks = Every(_LOOK_EVERY_S), 0
    with MetricsFile(layout.folder / "metrics" / "launcher.jsonl") as rows:
        while crew.is_learning():
            supervisor.tick()
            if every.is_due():
                answers = {name: answer for name in _DAEMONS if (answer := crew.look(name)) is not None}
                rows.write("look", num_looks, waits(answers))
                screen.show(training_progress(answers))
                num_looks += 1
    crew.stop("actors")
    return _result(layout)


def waits(answers: Mapping[str, status_pb2.GetStatusResponse]) -> dict[str, float | str | None]:
    """Who waits for whom at this look, in seconds so far, by `launcher/wait/DAEMON/PEER`."""
    return {
        f"launcher/wait/{daemon}/{wait.peer}": wait.waited_s
        for daemon, answer in answers.items()
        for wait in answer.waits
    }


def training_progress(answers: Mapping[str, status_pb2.GetStatusResponse]) -> Progress:
    """Batches done, what the newest one showed, and what each daemon waits for."""
    learner = answers.get("learner")
    done, _, total = (learner.facts["batches"] if learner and "batches" in learner.facts else "0/0").partition("/")
    words: list[str] = []
    if learner is not None:
        words = [f"{word} {shape.format(learner.values[key])}" for word, key, shape in _SHOWN if key in learner.values]
        words.append(f"learner {learner.phase}")
    waiting = {f"{daemon} waits for {wait.peer}" for daemon, answer in answers.items() for wait in answer.waits}
    return Progress(phase="training", done=float(done), total=float(total), text="  ".join([*words, *sorted(waiting)]))


def _result(layout: RunLayout) -> Mapping[str, object]:
    path = layout.folder / "learner_summary.json"
    if not path.is_file():
        raise DaemonFailedError(f"the learner ended without {path.name}; see {layout.files('learner').stderr}")
    return json.loads(path.read_text(encoding="utf-8"))
