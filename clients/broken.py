"""Games that broke while a command went through many: told one by one, an error only where they are too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from clients.panel import Outcome
from longturn.broken_share import too_many_broke
from longturn.errors import LongturnError
from longturn.task_file import TaskEntry


class GamesBrokenError(LongturnError):
    """All games broke, or more than may."""

    reason = "GAMES_BROKE"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenGame:
    """A game without a result, and why."""

    entry: TaskEntry
    error: LongturnError


def broken_games(outcomes: Sequence[Outcome]) -> list[BrokenGame]:
    """Those of a panel, in its order."""
    return [
        BrokenGame(entry=outcome.entry, error=outcome.result)
        for outcome in outcomes
        if isinstance(outcome.result, LongturnError)
    ]


def tell_and_judge(broken: Sequence[BrokenGame], total: int, *, max_broken_share: float) -> None:
    """Print a line per broken game on stderr; GamesBrokenError if all `total` broke, or more than that share."""
    for game in broken:
        name = f"{game.entry.task.task_id}#{game.entry.seed}"
        typer.echo(f"broken: {name} {game.error.reason}: {game.error}", err=True)
    if not too_many_broke(len(broken), total, max_broken_share=max_broken_share):
        return
    if len(broken) == total:
        raise GamesBrokenError(f"all {total} games broke, for the reasons above; look at the env server's log")
    raise GamesBrokenError(
        f"{len(broken)} of {total} games broke, for the reasons above, more than --max-broken-share ="
        f" {max_broken_share:g} allows; take them out of the task file, or allow more"
    )
