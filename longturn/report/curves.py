"""Which measurements the report draws, and what one should see in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from longturn.report.charts import Chart, Interval, Line
from longturn.report.evaluations import Evaluation, read_evaluations
from longturn.report.ledger import BatchFacts
from longturn.report.run_folder import Row, Series, series

_PHASES = ("wait_actors", "score", "update", "wait_engine", "probe", "checkpoint")
_WINDOW_S = 10.0


def build_charts(folder: Path, metrics: Mapping[str, Sequence[Row]], batches: Sequence[BatchFacts]) -> list[Chart]:
    """All charts of a run in the order of the page; some may be empty."""
    rows = metrics.get("learner", ())
    return [
        _held_out(read_evaluations(folder), rows, len(batches)),
        _training_success(rows),
        _returns(rows),
        _entropy(rows),
        _corridor(rows),
        _groups(rows),
        _mutual_information(rows),
        _staleness(rows),
        _mismatch(rows),
        _turns(rows),
        _tokens(metrics),
        _where_time_went(rows),
    ]


def _line(rows: Sequence[Row], name: str, label: str, *, axis: str = "batch", is_dashed: bool = False) -> Line:
    return Line(label=label, series=series(rows, axis=axis, name=name), is_dashed=is_dashed)


def _held_out(plays: Mapping[tuple[str, float], Evaluation], rows: Sequence[Row], num_batches: int) -> Chart:
    positions = {"before": 0.0, "after": float(num_batches)}
    points: list[Interval] = []
    for (point, temperature), play in sorted(plays.items()):
        if temperature == 1.0 and point in positions:
            summary = play.as_summary()
            low, high = summary["ci95"]  # type: ignore[misc]  # two numbers
            points.append(Interval(position=positions[point], value=play.success, low=low, high=high))
    return Chart(
        title="Success on held-out games, temperature 1",
        axis="training step",
        note="Points: test panel before and after, 95 % Wilson intervals. Line: validation panel during training.",
        lines=(_line(rows, "learner/eval/success_mean", "validation panel", axis="training_step"),),
        intervals=tuple(points),
        is_share=True,
    )


def _training_success(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Success of training episodes",
        axis="batch",
        lines=(_line(rows, "learner/episode/success_mean", "all episodes of the batch"),),
        is_share=True,
    )


def _returns(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Return",
        axis="batch",
        note="The shaped return, after penalties, is what the filter and the advantages see.",
        lines=(
            _line(rows, "learner/episode/return_mean", "episode return"),
            _line(rows, "learner/episode/shaped_return_mean", "shaped return", is_dashed=True),
        ),
    )


def _entropy(rows: Sequence[Row]) -> Chart:
    low = series(rows, axis="batch", name="learner/epo/corridor_low")
    high = series(rows, axis="batch", name="learner/epo/corridor_high")
    return Chart(
        title="Entropy and the EPO corridor (nats per token)",
        axis="batch",
        note="The corridor is [kappa_low, kappa_high] times the mean entropy of all earlier training steps.",
        lines=(
            _line(rows, "learner/entropy/token_mean", "all tokens"),
            _line(rows, "learner/entropy/early_third", "early third of the turns", is_dashed=True),
            _line(rows, "learner/entropy/late_third", "late third of the turns", is_dashed=True),
            _line(rows, "learner/epo/reference", "reference"),
        ),
        band=(low, high) if low.positions == high.positions else None,
    )


def _corridor(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Tokens below, inside and above the corridor",
        axis="batch",
        lines=tuple(_line(rows, f"learner/epo/share_{part}", part) for part in ("below", "inside", "above")),
        is_share=True,
    )


def _groups(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Groups kept by the SNR filter",
        axis="batch",
        lines=(
            _line(rows, "learner/group/generated", "complete"),
            _line(rows, "learner/group/kept", "kept"),
            _line(rows, "learner/group/lost", "failed", is_dashed=True),
        ),
    )


def _mutual_information(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Does the reasoning depend on the input?",
        axis="batch",
        note="A fall of I(X;Z) while H(Z|X) stays is template collapse (RAGEN-2).",
        lines=(
            _line(rows, "learner/mi/any_turn_token", "I(X;Z) per token, any turn"),
            _line(rows, "learner/mi/first_turn_token", "I(X;Z) per token, first turn", is_dashed=True),
            _line(rows, "learner/mi/any_turn_h_z_given_x", "H(Z|X) per token, any turn"),
            _line(rows, "learner/mi/any_turn_retrieval", "retrieval accuracy", is_dashed=True),
        ),
    )


def _staleness(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Staleness of the data (training steps)",
        axis="batch",
        lines=(
            _line(rows, "learner/lag/head", "oldest token"),
            _line(rows, "learner/lag/token_mean", "mean over tokens"),
            _line(rows, "learner/lag/tail", "newest token", is_dashed=True),
        ),
    )


def _mismatch(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Effective sample size of the importance weights",
        axis="batch",
        lines=(_line(rows, "learner/mismatch/effective_sample_size", "share of tokens"),),
        is_share=True,
    )


def _turns(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Turns per episode",
        axis="batch",
        lines=(_line(rows, "learner/episode/turns_mean", "mean over all episodes"),),
    )


def _tokens(metrics: Mapping[str, Sequence[Row]]) -> Chart:
    actors = [row for name, rows in metrics.items() if name.startswith("actors") for row in rows]
    return Chart(
        title="Tokens per second",
        axis="seconds since the first episode",
        lines=(
            Line(label="sampled by the actors", series=_rate(actors, "actors/episode/sum_completion_tokens")),
            Line(label="through the learner's update", series=_by_time(metrics, "learner/tokens/rate_per_s")),
        ),
    )


def _where_time_went(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="The learner's time per batch (seconds)",
        axis="batch",
        lines=tuple(_line(rows, f"learner/phase/{name}_s", name.replace("_", " for ")) for name in _PHASES),
    )


def _start_s(metrics: Mapping[str, Sequence[Row]]) -> float:
    times = [_number(row, "time_s") for rows in metrics.values() for row in rows]
    return min((time_s for time_s in times if time_s is not None), default=0.0)


def _by_time(metrics: Mapping[str, Sequence[Row]], name: str) -> Series:
    found = series(metrics.get("learner", ()), axis="time_s", name=name)
    start_s = _start_s(metrics)
    return Series(positions=tuple(time_s - start_s for time_s in found.positions), values=found.values)


def _rate(rows: Sequence[Row], name: str) -> Series:
    """Growth per second of a counter; a restarted daemon starts again from zero, which is no negative growth."""
    counter = series(rows, axis="time_s", name=name)
    positions: list[float] = []
    rates: list[float] = []
    last_s, last = (counter.positions[0], counter.values[0]) if counter.values else (0.0, 0.0)
    for time_s, value in zip(counter.positions, counter.values, strict=True):
        if value < last:
            last_s, last = time_s, value
        elif time_s - last_s >= _WINDOW_S:
            positions.append(time_s - counter.positions[0])
            rates.append((value - last) / (time_s - last_s))
            last_s, last = time_s, value
    return Series(positions=tuple(positions), values=tuple(rates))


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else None


def waits(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Share of the launcher's looks at which a daemon waited for a peer, of those it answered, by (daemon, peer)."""
    looks = [row for row in rows if "look" in row]
    num_answers, num_waits = Counter[str](), Counter[tuple[str, str]]()
    for name in (name for look in looks for name in look):
        match name.split("/"):
            case ["launcher", "answer", daemon]:
                num_answers[daemon] += 1
            case ["launcher", "wait", daemon, peer]:
                num_waits[daemon, peer] += 1
            case _:
                pass  # The position and the time of the look.
    return {pair: count / num_answers[pair[0]] for pair, count in sorted(num_waits.items())}
