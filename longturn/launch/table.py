"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from longturn.launch.screen import clock
from longturn.report.page import broken_games, privileged_sentence, temperature_sentence

Summary = Mapping[str, Any]


def show_result(console: Console, summary: Summary, report: str) -> None:
    """Print held-out success before and after, and where to read on."""
    table = Table("held-out games", "before", "after", "change", title=f"run {summary['run']}: success, 95 % intervals")
    for key, label in (("held_out", "temperature 1"), ("held_out_greedy", "greedy")):
        plays = summary[key]
        table.add_row(label, _play(plays["before"]), _play(plays["after"]), _change(plays["paired"]))
    console.print(table)
    for line in _lines(summary):
        console.print(line, highlight=False)
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


def _lines(summary: Summary) -> Iterator[str]:
    by_temperature = (f"{play['temperature']:g}: {play['success']:.0%}" for play in summary["warm_start_temperatures"])
    yield "warm start by temperature  " + "  ".join(by_temperature)
    if summary["trained_turns_mean"] is not None:
        yield (
            f"trained on {summary['trained_episodes']} episodes, {summary['trained_turns_mean']:.1f} turns in the mean;"
            f" wall time {clock(sum(summary['phases_s'].values()))}"
        )
    yield privileged_sentence(summary)
    yield temperature_sentence(summary)


def _play(play: Mapping[str, Any] | None) -> str:
    if play is None:
        return "not yet"
    low, high = play["ci95"]
    games = (f"{play['episodes']} games", broken_games(play), f"{play['turns_mean']:.1f} turns")
    return f"{play['success']:.0%} [{low:.0%}, {high:.0%}]\n" + ", ".join(part for part in games if part)


def _change(paired: Mapping[str, Any] | None) -> str:
    if paired is None:
        return "not yet"
    low, high = paired["ci95"]
    return f"{100 * paired['change']:+.0f} points\n[{100 * low:+.0f}, {100 * high:+.0f}]"
