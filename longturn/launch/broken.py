"""What becomes of a play of a panel in which games broke, be it of this start of the run or of an earlier one."""

from __future__ import annotations

from pathlib import Path

from longturn.broken_share import too_many_broke
from longturn.disk import naming
from longturn.errors import LongturnError
from longturn.report.evaluations import Evaluation, read_evaluation

_NAMED_TASKS = 8


class BrokenEvaluationError(LongturnError):
    """Too many games of a panel broke for the play to count."""

    reason = "EVALUATION_BROKEN"


def judged(path: Path, *, max_broken_share: float) -> Evaluation:
    """The play in a file, if at most that share of its games broke.

    Otherwise raises BrokenEvaluationError naming tasks and reasons, and puts the file aside, so that a resumed run
    plays the panel again.
    """
    play = read_evaluation(path)
    num_broken = len(play.broken_by_task)
    if play.success_by_task and not too_many_broke(num_broken, play.num_tasks, max_broken_share=max_broken_share):
        return play
    aside = path.with_suffix(".rejected")
    with naming(path):
        path.replace(aside)
    title = f"evaluation {play.point} at temperature {play.temperature:g}"
    rest = f"the play does not count (it is kept in {aside}), and a resumed run plays the panel again"
    if not play.success_by_task:
        logs = path.parents[1] / "logs"
        raise BrokenEvaluationError(
            f"{title}: all {play.num_tasks} games broke: {_listed(play)}; look at {logs / 'env_server.log'} and"
            f" {logs / 'engine.log'} for what they have in common; {rest}"
        )
    raise BrokenEvaluationError(
        f"{title}: {num_broken} of {play.num_tasks} games broke, more than evaluation.max_broken_share ="
        f" {max_broken_share:g} allows: {_listed(play)}; {rest}"
    )


def _listed(play: Evaluation) -> str:
    named = [f"{task} {reason}" for task, reason in play.broken_by_task.items()]
    more = [f"and {len(named) - _NAMED_TASKS} more"] if len(named) > _NAMED_TASKS else []
    return ", ".join([*named[:_NAMED_TASKS], *more])
