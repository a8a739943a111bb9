"""What the user sees while a run goes on: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

_PLAIN_EVERY_S = 15.0
_RATE_WINDOW_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a phase is: `done` of `total` units, and a few words."""

    phase: str
    done: float = 0.0
    total: float = 0.0
    text: str = ""


class EpisodeCount:
    """Episodes started since the first answer, from a counter of a server that may be silent or restarted."""

    def __init__(self) -> None:
        self._counter: float | None = None
        self._num_started = 0.0

    def note(self, counter: float | None) -> float:
        """Take a look's answer, None where there was none, and return the number so far; it never falls."""
        if counter is None:
            return self._num_started
        if self._counter is not None:
            # A restarted server counts from zero.
            self._num_started += counter - self._counter if counter >= self._counter else counter
        self._counter = counter
        return self._num_started


class Eta:
    """Seconds left, from the rate over the last two minutes."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def left_s(self, done: float, total: float, now_s: float) -> float | None:
        """Seconds until `done` reaches `total`; None while the rate is unknown."""
        if not self._points or done != self._points[-1][1]:
            self._points.append((now_s, done))
        while len(self._points) > 2 and now_s - self._points[0][0] > _RATE_WINDOW_S:
            self._points.popleft()
        (first_s, first), (_, last) = self._points[0], self._points[-1]
        if last <= first or total <= done:
            return 0.0 if total and total <= done else None
        return (total - last) * (now_s - first_s) / (last - first)


class Screen:
    """Shows progress and events. Use it as a context."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._phase = ""
        self._eta = Eta()
        self._phase_started_s = 0.0
        self._last_plain_s = 0.0

    def say(self, line: str) -> None:
        """Show an event; it stays."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """Show how far the current phase is."""
        now_s = time.monotonic()
        if progress.phase != self._phase:
            self._phase, self._eta, self._phase_started_s = progress.phase, Eta(), now_s
            self._last_plain_s = now_s
        left_s = self._eta.left_s(progress.done, progress.total, now_s)
        elapsed_s = now_s - self._phase_started_s
        if self._live is not None:
            self._live.update(_row(progress, elapsed_s, left_s), refresh=True)
        elif now_s - self._last_plain_s >= _PLAIN_EVERY_S:
            self._last_plain_s = now_s
            self.say(_line(progress, elapsed_s, left_s))

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def clock(seconds: float) -> str:
    """Minutes and seconds, such as 7:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _count(progress: Progress) -> str:
    return f"{progress.done:g}/{progress.total:g}" if progress.total else ""


def _times(elapsed_s: float, left_s: float | None) -> str:
    return clock(elapsed_s) + (f", {clock(left_s)} left" if left_s is not None else "")


def _line(progress: Progress, elapsed_s: float, left_s: float | None) -> str:
    parts = (progress.phase, _count(progress), progress.text, _times(elapsed_s, left_s))
    return "  ".join(part for part in parts if part)


def _row(progress: Progress, elapsed_s: float, left_s: float | None) -> Table:
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=progress.total or None, completed=progress.done, width=24, pulse=not progress.total)
    grid.add_row(progress.phase, bar, _count(progress), _times(elapsed_s, left_s))
    panel = Table.grid()
    panel.add_row(grid)
    panel.add_row(progress.text)
    return panel
