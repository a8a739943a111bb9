"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from longturn.launch.screen import clock
from longturn.report.page import privileged_sentence, temperature_sentence

Summary = Mapping[str, Any]


def show_result(console: Console, summary: Summary, report: str) -> None:
    """Print held-out success before and after, and where to read on."""
    table = Table("held-out games", "before", "after", "change (paired)", title=f"run {summary['run']}")
    for key, label in (("held_out", "temperature 1"), ("held_out_greedy", "greedy")):
        plays = summary[key]
        table.add_row(label, _play(plays["before"]), _play(plays["after"]), _change(plays["paired"]))
    console.print(table)
    others = "  ".join(f"{play['temperature']:g}: {play['success']:.2f}" for play in summary["warm_start_temperatures"])
    console.print(f"warm start by temperature  {others}", highlight=False)
    turns = summary["trained_turns_mean"]
    if turns is not None:
        console.print(
            f"trained on {summary['trained_episodes']} episodes of {turns:.1f} turns in the mean;"
            f" wall time {clock(sum(summary['phases_s'].values()))}",
            highlight=False,
        )
    for sentence in (privileged_sentence(summary), temperature_sentence(summary)):
        console.print(sentence, highlight=False)
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


def _play(play: Mapping[str, Any] | None) -> str:
    if play is None:
        return "not yet"
    low, high = play["ci95"]
    return f"{play['success']:.3f} [{low:.3f}, {high:.3f}]  {play['episodes']} games, {play['turns_mean']:.1f} turns"


def _change(paired: Mapping[str, Any] | None) -> str:
    if paired is None:
        return "not yet"
    low, high = paired["ci95"]
    return f"{paired['change']:+.3f} [{low:+.3f}, {high:+.3f}]"
