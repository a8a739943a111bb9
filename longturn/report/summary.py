"""`summary.json`: what a run came to, computed from its folder alone, so that it can be written again at any time."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from longturn.disk import read_json, write_json
from longturn.report.evaluations import Evaluation, change, read_evaluations
from longturn.report.ledger import BatchFacts, read_batches

_PACKAGES = ("longturn", "torch", "transformers", "tokenizers", "textworld", "grpcio", "protobuf", "pyzmq", "numpy")
_LEARNED = ("run_id", "reason", "policy_version", "used_privileged_progress", "permuted_advantages", "phase_wall_s")
SAMPLED, GREEDY = 1.0, 0.0

# Values are what JSON holds.
Summary = dict[str, Any]


def build_summary(folder: Path) -> Summary:
    """The summary of a run; parts that the run has not reached are null."""
    plays = read_evaluations(folder)
    batches = read_batches(folder)
    learned = _read_json(folder / "learner_summary.json")
    return {
        **_read_json(folder / "launch.json"),
        **{name: learned[name] for name in _LEARNED if name in learned},
        "held_out": _before_and_after(plays, SAMPLED),
        "held_out_greedy": _before_and_after(plays, GREEDY),
        "warm_start_temperatures": [
            play.as_summary() for (point, _), play in sorted(plays.items()) if point == "before"
        ],
        **_training(batches),
        "phases_s": _wall_times_s(folder),
        "versions": _versions(),
    }


def write_summary(folder: Path) -> Summary:
    """Write `summary.json` and return it; DiskError if it cannot be written."""
    summary = build_summary(folder)
    write_json(folder / "summary.json", summary)
    return summary


def _before_and_after(plays: Mapping[tuple[str, float], Evaluation], temperature: float) -> dict[str, object]:
    before, after = plays.get(("before", temperature)), plays.get(("after", temperature))
    return {
        "before": None if before is None else before.as_summary(),
        "after": None if after is None else after.as_summary(),
        "paired": None if before is None or after is None else change(before, after),
    }


def _training(batches: list[BatchFacts]) -> dict[str, object]:
    num_episodes = sum(batch.num_trained_episodes for batch in batches)
    num_turns = sum(batch.trained_turns_sum for batch in batches)
    return {
        "trained_turns_mean": num_turns / num_episodes if num_episodes else None,
        "trained_episodes": num_episodes,
        "played_episodes": sum(batch.num_episodes for batch in batches),
        "batches_trained": sum(1 for batch in batches if batch.outcome == "TRAINED"),
        "batches_skipped": sum(1 for batch in batches if batch.outcome == "SKIPPED"),
    }


def _wall_times_s(folder: Path) -> dict[str, object]:
    return _read_json(folder / "phases" / "spent.json")


def _read_json(path: Path) -> dict[str, object]:
    return read_json(path, mend="remove it to report without it") if path.is_file() else {}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            # An optional extra; its absence is what the reader wants to know.
            versions[package] = "not installed"
    return versions
