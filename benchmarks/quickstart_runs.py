"""The quickstart's runs for docs/results: seeds 0, 1, 2, the permuted control and the run without the turn-level term.

Run: python benchmarks/quickstart_runs.py play                      80 minutes on 2 quiet cores; goes on if stopped
     python benchmarks/quickstart_runs.py table --curves FILE.svg   prints Markdown, draws the curves
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longturn.report.charts import Chart, Line, draw
from longturn.report.run_folder import read_metrics, series
from longturn.report.summary import build_summary

CONFIG = "configs/quickstart.toml"
SEEDS = (0, 1, 2)
TEMPERATURES = "evaluation.other_temperatures=[0.3, 0.5, 0.7]"
"""Of the warm start, besides 1 and 0, which `make train` plays."""
CONTROLS = {
    "permuted": ("permuted advantages", "learner.control.permute_advantages=true"),
    "no_turn_term": ("w = 0, no turn-level term", "learner.advantage.turn_weight=0"),
}
FOLDER = Path("runs")


def play() -> None:
    """Run what is not finished. The controls start from seed 0's warm start."""
    for seed in SEEDS:
        _train(f"seed{seed}", "--seed", str(seed))
    for name, (_, setting) in CONTROLS.items():
        _train(name, "--seed", "0", "--warm-start", str(FOLDER / "seed0"), "--set", setting)


def _train(name: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "longturn", "train"]
    if (FOLDER / name / "config.toml").exists():
        subprocess.run([*command, "--resume", str(FOLDER / name)], check=True)
    else:
        subprocess.run([*command, "--config", CONFIG, "--run", name, "--set", TEMPERATURES, *arguments], check=True)


def table(curves: Path) -> None:
    """Print the tables and draw the curves."""
    labels = {f"seed{seed}": f"seed {seed}" for seed in SEEDS} | {name: label for name, (label, _) in CONTROLS.items()}
    summaries = {name: build_summary(FOLDER / name) for name in labels if (FOLDER / name / "summary.json").exists()}
    lines = [
        "| run | success at T = 1 before | after | rise | greedy before | after | paired change | turns trained |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(labels[name], summary) for name, summary in summaries.items()),
        "",
        "| warm start of | " + " | ".join(f"T = {t:g}" for t in _temperatures(summaries)) + " |",
        "| --- |" + " --- |" * len(_temperatures(summaries)),
        *(
            _temperature_row(labels[f"seed{seed}"], summaries[f"seed{seed}"], _temperatures(summaries))
            for seed in SEEDS
            if f"seed{seed}" in summaries
        ),
        "",
        "| run | phase | seconds |",
        "| --- | --- | --- |",
        *(
            f"| {labels[name]} | {phase} | {seconds:.0f} |"
            for name, summary in summaries.items()
            for phase, seconds in summary["phases_s"].items()
        ),
        "",
        "Success of training episodes by batch:",
        "",
        *(f"- {labels[name]}: {_training_success(FOLDER / name)}" for name in summaries),
        "",
    ]
    print("\n".join(lines))
    curves.write_text(draw(_curves(labels, list(summaries))), encoding="utf-8")


def _row(label: str, summary: dict[str, Any]) -> str:
    sampled, greedy = summary["held_out"], summary["held_out_greedy"]
    rise = sampled["after"]["success"] - sampled["before"]["success"]
    cells = [
        label,
        _share(sampled["before"]),
        _share(sampled["after"]),
        f"{100 * rise:+.1f} points",
        _share(greedy["before"]),
        _share(greedy["after"]),
        f"{100 * greedy['paired']['change']:+.1f} ({_points(greedy['paired']['ci95'])})",
        f"{summary['trained_turns_mean']:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _temperatures(summaries: dict[str, dict[str, Any]]) -> list[float]:
    return sorted(
        {play["temperature"] for s in summaries.values() for play in s["warm_start_temperatures"]}, reverse=True
    )


def _temperature_row(label: str, summary: dict[str, Any], temperatures: Sequence[float]) -> str:
    plays = {play["temperature"]: _share(play) for play in summary["warm_start_temperatures"]}
    return f"| {label} | {' | '.join(plays.get(temperature, 'not played') for temperature in temperatures)} |"


def _share(play: dict[str, Any]) -> str:
    return f"{play['success']:.3f} ({_interval(play['ci95'])})"


def _interval(ci95: Sequence[float]) -> str:
    return f"{ci95[0]:.3f}-{ci95[1]:.3f}"


def _points(ci95: Sequence[float]) -> str:
    return f"{100 * ci95[0]:+.1f} to {100 * ci95[1]:+.1f}"


def _training_success(folder: Path) -> str:
    values = series(read_metrics(folder)["learner"], axis="batch", name="learner/episode/success_mean").values
    return ", ".join(f"{value:.2f}" for value in values)


def _curves(labels: dict[str, str], names: Sequence[str]) -> Chart:
    rows = {name: read_metrics(FOLDER / name)["learner"] for name in names}
    return Chart(
        title="Success of training episodes at temperature 1",
        axis="batch",
        lines=tuple(
            Line(
                label=labels[name],
                series=series(rows[name], axis="batch", name="learner/episode/success_mean"),
                is_dashed=name in CONTROLS,
            )
            for name in names
        ),
        is_share=True,
    )


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("play")
    commands.add_parser("table").add_argument("--curves", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "play":
        play()
    else:
        table(arguments.curves)


if __name__ == "__main__":
    main()
