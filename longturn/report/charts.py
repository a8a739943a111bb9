"""Charts as inline SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from longturn.report.run_folder import Series

_COLOURS = ("#1f5fa8", "#c44e2c", "#3c8a4e", "#7d5ba6", "#b08c1f", "#5a5a5a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    label: str
    series: Series
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A point with its 95 % interval."""

    position: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What is drawn. `band` is filled between two series; `note` is a sentence below the title."""

    title: str
    axis: str
    lines: tuple[Line, ...]
    note: str = ""
    band: tuple[Series, Series] | None = None
    intervals: tuple[Interval, ...] = ()
    is_share: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.intervals and all(line.series.is_empty for line in self.lines)


def draw(chart: Chart) -> str:
    """The chart as an SVG element; equal charts give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5.6, 3.1), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    if chart.band is not None and not chart.band[0].is_empty:
        low, high = chart.band
        axes.fill_between(low.positions, low.values, high.values, color="#dfe7f1", label="corridor")
    for line, colour in zip(chart.lines, _cycle(len(chart.lines)), strict=True):
        if not line.series.is_empty:
            style = "--" if line.is_dashed else "-"
            marker = "." if len(line.series.values) < 40 else ""
            axes.plot(line.series.positions, line.series.values, style, marker=marker, color=colour, label=line.label)
    for point in chart.intervals:
        below, above = max(0.0, point.value - point.low), max(0.0, point.high - point.value)
        axes.errorbar([point.position], [point.value], yerr=[[below], [above]], fmt="o", color="#222222", capsize=3)
    axes.set_xlabel(chart.axis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.is_share:
        axes.set_ylim(-0.03, 1.03)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
    # Ids inside the element are hashed with a salt: charts on one page must not share them.
    with rc_context({"svg.hashsalt": chart.title}):
        return _svg(figure)


def _cycle(length: int) -> Sequence[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(length)]


def _svg(figure: object) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})  # type: ignore[attr-defined]  # a matplotlib Figure
    text = buffer.getvalue()
    return text[text.index("<svg") :]
