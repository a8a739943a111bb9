"""What commands show while they play: a bar with counts, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from clients.evaluation import Evaluation, Score
from clients.panel import Outcome
from longturn.records import Trajectory


class EpisodeProgress:
    """A bar over episodes that also says how many succeeded."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress = progress
        self._bar = bar
        self._num_done = 0
        self._num_success = 0

    def expect(self, total: int) -> None:
        """Say how many there will be."""
        self._progress.update(self._bar, total=total)

    def add(self, outcome: Outcome) -> None:
        """One more ended."""
        self._num_done += 1
        self._num_success += isinstance(outcome.result, Trajectory) and outcome.result.success
        self._progress.update(self._bar, advance=1, facts=f"success {self._num_success / self._num_done:.2f} so far")

    def advance(self) -> None:
        """One more is done that has no result."""
        self._progress.update(self._bar, advance=1)


@contextmanager
def episode_progress(title: str) -> Iterator[EpisodeProgress]:
    """Show a bar on stderr; nothing moves where stderr is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield EpisodeProgress(progress, progress.add_task(title, total=None, facts=""))


def score_table(evaluation: Evaluation, *, title: str) -> Table:
    """Totals, then each kind."""
    table = Table(title=title)
    table.add_column("tasks", no_wrap=True)
    for name in ("n", "success", "95 %", "score", "turns", "valid", "form"):
        table.add_column(name, justify="right", no_wrap=True)
    if len(evaluation.by_kind) > 1:
        for kind, score in sorted(evaluation.by_kind.items()):
            table.add_row(kind, *_cells(score))
        table.add_section()
    table.add_row("all", *_cells(evaluation.score))
    for reason, number in sorted(evaluation.failed.items()):
        table.add_row(f"no result: {reason}", str(number), *([""] * 6))
    return table


def _cells(score: Score) -> tuple[str, ...]:
    low, high = score.ci95
    return (
        str(score.episodes),
        _shown(score.success, 3),
        f"{low:.2f} - {high:.2f}",
        _shown(score.score_mean, 3),
        _shown(score.turns_mean, 1),
        _shown(score.action_valid_share, 3),
        _shown(score.format_valid_share, 3),
    )


def _shown(value: float | None, num_digits: int) -> str:
    return "-" if value is None else f"{value:.{num_digits}f}"
