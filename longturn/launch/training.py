"""The training phase: learner and actors play and learn until the learner ends; the launcher looks on."""

from __future__ import annotations

from collections.abc import Mapping

from longturn.disk import read_json
from longturn.launch.daemons import Daemons, Every
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


def train(daemons: Daemons, supervisor: Supervisor, screen: Screen, layout: RunLayout) -> Mapping[str, object]:
    """Run learner and actors to the learner's end; the env server and the engine are used as they are."""
    daemons.start_training(daemons.engine(layout.warm_start, "0"))
    daemons.weights_changed()
    every, num_looks, view = Every(_LOOK_EVERY_S), 0, TrainingView()
    with MetricsFile(layout.folder / "metrics" / "launcher.jsonl") as rows:
        while daemons.is_learning():
            supervisor.tick()
            if every.is_due():
                answers = {name: answer for name in _DAEMONS if (answer := daemons.look(name)) is not None}
                rows.write("look", num_looks, waits(answers))
                screen.show(view.progress(answers))
                num_looks += 1
    daemons.stop("actors")
    return learner_summary(layout)


def waits(answers: Mapping[str, status_pb2.GetStatusResponse]) -> dict[str, float | str | None]:
    """Who waits for whom at this look, in seconds so far, by `launcher/wait/DAEMON/PEER`, and who answered."""
    answered = {f"launcher/answer/{daemon}": 1.0 for daemon in answers}
    waited = {
        f"launcher/wait/{daemon}/{wait.peer}": wait.waited_s
        for daemon, answer in answers.items()
        for wait in answer.waits
    }
    return {**answered, **waited}


class TrainingView:
    """What the progress line shows; while the learner does not answer, or has none to tell, its last numbers stay."""

    def __init__(self) -> None:
        self._done, self._total = 0.0, 0.0
        self._words: list[str] = []

    def progress(self, answers: Mapping[str, status_pb2.GetStatusResponse]) -> Progress:
        """Batches done, what the newest one showed, and what each daemon waits for."""
        learner = answers.get("learner")
        if learner is not None:
            self._take(learner)
        state = "learner does not answer" if learner is None else f"learner {learner.phase}"
        waiting = {f"{daemon} waits for {wait.peer}" for daemon, answer in answers.items() for wait in answer.waits}
        text = "  ".join([*self._words, state, *sorted(waiting)])
        return Progress(phase="training", done=self._done, total=self._total, text=text)

    def _take(self, learner: status_pb2.GetStatusResponse) -> None:
        # A restarted learner has neither before its first batch.
        if "batches" in learner.facts:
            done, _, total = learner.facts["batches"].partition("/")
            self._done, self._total = float(done), float(total)
        words = [f"{word} {shape.format(learner.values[key])}" for word, key, shape in _SHOWN if key in learner.values]
        self._words = words or self._words


def learner_summary(layout: RunLayout) -> Mapping[str, object]:
    """What the learner says of itself at its end; DaemonFailedError if it did not."""
    path = layout.folder / "learner_summary.json"
    if not path.is_file():
        raise DaemonFailedError(f"the learner ended without {path.name}; see {layout.files('learner').stderr}")
    return read_json(path, mend="remove phases/training.json and resume: the learner writes it again")
