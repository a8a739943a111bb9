"""`report.html`: one self-contained file with the table, the charts and what they mean."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from longturn.disk import write_whole
from longturn.report.charts import Chart, draw
from longturn.report.curves import build_charts, waits
from longturn.report.ledger import read_batches
from longturn.report.run_folder import DAMAGED, Row, read_metrics, read_summary

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: .25em .9em; border-bottom: 1px solid #ddd; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(520px, 1fr)); gap: 1.4em; }
figure { margin: 0; } figcaption { font-weight: 600; } figure p { margin: 0; color: #555; font-size: .88em; }
svg { width: 100%; height: auto; }
"""


def write_report(folder: Path) -> Path:
    """Write `report.html` from what lies in the run folder and return its path; DiskError if it cannot be written."""
    path = folder / "report.html"
    write_whole(path, build_page(folder))
    return path


def build_page(folder: Path) -> str:
    """The page as text."""
    summary, metrics = read_summary(folder), read_metrics(folder)
    batches = read_batches(folder)
    charts = build_charts(folder, metrics, batches)
    parts = [
        f"<h1>Run {_text(summary.get('run', folder.name))}</h1>",
        _held_out_table(summary),
        f"<p>{_text(privileged_sentence(summary))}</p>",
        f"<p>{_text(temperature_sentence(summary))}</p>",
        _temperature_table(summary),
        "<h2>Curves</h2>",
        '<div class="charts">' + "".join(_figure(chart) for chart in charts if not chart.is_empty) + "</div>",
        _missing(charts),
        "<h2>Who waited for whom</h2>",
        _waits_table(metrics.get("launcher", ())),
        "<h2>Time, versions, seeds</h2>",
        _facts_table(summary),
        _damaged_note(metrics),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(summary.get("run", "run"))}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def privileged_sentence(summary: Mapping[str, object]) -> str:
    """Whether training used progress that the policy does not see."""
    if summary.get("used_privileged_progress"):
        return (
            "Training used privileged progress: the turn-level term of the advantage comes from the environment's own"
            " distance to the goal, which the policy never sees. Success is the environment's goal test alone."
        )
    return "Training used no privileged signal: advantages come from episode returns alone."


def temperature_sentence(summary: Mapping[str, object]) -> str:
    """How much of the rise a lower temperature alone would have given."""
    sampled = _mapping(summary.get("held_out"))
    before, after = _mapping(sampled.get("before")), _mapping(sampled.get("after"))
    plays = [_mapping(play) for play in _sequence(summary.get("warm_start_temperatures"))]
    if not before or not after or len(plays) < 2:
        return "The warm start was played at one temperature only, so the effect of temperature is not known."
    best = max(plays, key=lambda play: _number(play.get("success")))
    rise = _number(after.get("success")) - _number(before.get("success"))
    alone = _number(best.get("success")) - _number(before.get("success"))
    if best is before or alone <= 0:
        return f"Success changed by {100 * rise:+.0f} points; no other temperature improves the warm start."
    return (
        f"Of the change of {100 * rise:+.0f} points at temperature 1, lowering the warm start's temperature to"
        f" {_number(best.get('temperature')):g} alone would have given {100 * alone:.0f} points."
    )


def broken_games(play: Mapping[str, object]) -> str:
    """What a table says of games without a result, such as `2 broken (STEP_TIMEOUT 2)`; empty if there are none."""
    reasons = _mapping(play.get("broken_by_reason"))
    listed = ", ".join(f"{reason} {_number(count):.0f}" for reason, count in sorted(reasons.items()))
    return f"{_number(play.get('broken_episodes')):.0f} broken ({listed})" if reasons else ""


def _held_out_table(summary: Mapping[str, object]) -> str:
    rows = ["<tr><th>held-out games</th><th>before</th><th>after</th><th>change, paired 95 % interval</th></tr>"]
    for key, label in (("held_out", "temperature 1"), ("held_out_greedy", "greedy")):
        plays = _mapping(summary.get(key))
        paired = _mapping(plays.get("paired"))
        difference = (
            f"{100 * _number(paired.get('change')):+.1f} points {_interval(paired.get('ci95'))}"
            if paired
            else "not yet"
        )
        rows.append(
            f"<tr><td>{label}</td><td>{_play(plays.get('before'))}</td><td>{_play(plays.get('after'))}</td>"
            f"<td>{difference}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _temperature_table(summary: Mapping[str, object]) -> str:
    plays = [_mapping(play) for play in _sequence(summary.get("warm_start_temperatures"))]
    rows = "".join(
        f"<tr><td class=n>{_number(play.get('temperature')):g}</td><td>{_play(play)}</td></tr>" for play in plays
    )
    return f"<table><tr><th>temperature</th><th>warm start</th></tr>{rows}</table>" if rows else ""


def _play(value: object) -> str:
    play = _mapping(value)
    if not play:
        return "not yet"
    parts = (
        f"{100 * _number(play.get('success')):.1f} % {_interval(play.get('ci95'))}",
        f"{_number(play.get('episodes')):.0f} episodes",
        _text(broken_games(play)),
        f"{_number(play.get('turns_mean')):.1f} turns",
    )
    return ", ".join(part for part in parts if part)


def _interval(value: object) -> str:
    low, high = (_number(bound) for bound in _sequence(value))
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def _figure(chart: Chart) -> str:
    note = f"<p>{_text(chart.note)}</p>" if chart.note else ""
    return f"<figure><figcaption>{_text(chart.title)}</figcaption>{note}{draw(chart)}</figure>"


def _missing(charts: Sequence[Chart]) -> str:
    titles = [chart.title for chart in charts if chart.is_empty]
    return f"<p>Not measured in this run: {_text('; '.join(titles))}.</p>" if titles else ""


def _waits_table(rows: Sequence[Row]) -> str:
    found = waits(rows)
    if not found:
        return "<p>No daemon was seen waiting.</p>"
    body = "".join(
        f"<tr><td>{_text(daemon)}</td><td>{_text(peer)}</td><td class=n>{100 * share:.0f} %</td></tr>"
        for (daemon, peer), share in sorted(found.items(), key=lambda item: -item[1])
    )
    return (
        "<p>The launcher looks every few seconds of training. Shares are of the looks that the daemon answered.</p>"
        f"<table><tr><th>daemon</th><th>waited for</th><th>share</th></tr>{body}</table>"
    )


def _facts_table(summary: Mapping[str, object]) -> str:
    rows: list[str] = []
    for key in (
        "run_id",
        "seed",
        "config_digest",
        "settings_changed",
        "policy_version",
        "reason",
        "trained_turns_mean",
        "trained_episodes",
        "restarts",
    ):
        if key in summary:
            rows.append(f"<tr><td>{_text(key)}</td><td>{_text(summary[key])}</td></tr>")
    for name, seconds in _mapping(summary.get("phases_s")).items():
        rows.append(f"<tr><td>time of {_text(name)}</td><td>{_number(seconds):.0f} s</td></tr>")
    for name, version in _mapping(summary.get("versions")).items():
        rows.append(f"<tr><td>{_text(name)}</td><td>{_text(version)}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _damaged_note(metrics: Mapping[str, Sequence[Row]]) -> str:
    num_damaged = sum(1 for rows in metrics.values() for row in rows if row is DAMAGED)
    return f"<p>{num_damaged} rows of measurements were cut short by a kill and left out.</p>" if num_damaged else ""


def _text(value: object) -> str:
    return html.escape(str(value))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
