"""What a run folder holds: rows of measurements per daemon, and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longturn.disk import read_json
from longturn.errors import ConfigError
from longturn.json_text import parse_json

Row = Mapping[str, object]

DAMAGED: Row = {}
"""Stands for a row that a kill cut short; it has no position, so it enters no series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measurements of one name, in the order of its daemon's step axis."""

    positions: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return not self.values


def read_metrics(folder: Path) -> dict[str, list[Row]]:
    """Rows of every `metrics/*.jsonl` by file stem; rows cut short by a kill are DAMAGED."""
    return {path.stem: _read_rows(path) for path in sorted((folder / "metrics").glob("*.jsonl"))}


def series(rows: Sequence[Row], *, axis: str, name: str) -> Series:
    """The numbers called `name` along `axis`; where a resumed run repeats a position, the later row counts."""
    points: dict[float, float] = {}
    for row in rows:
        position, value = row.get(axis), row.get(name)
        if isinstance(position, int | float) and isinstance(value, int | float):
            points[float(position)] = float(value)
    ordered = sorted(points.items())
    return Series(positions=tuple(point[0] for point in ordered), values=tuple(point[1] for point in ordered))


def read_summary(folder: Path) -> dict[str, object]:
    """`summary.json` of a run; raises ConfigError if there is none."""
    path = folder / "summary.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; finish the run with `longturn train --resume {folder}`")
    return read_json(path, mend=f"write it again with `longturn report {folder}`")


def _read_rows(path: Path) -> list[Row]:
    rows: list[Row] = []
    for line in path.read_bytes().splitlines():
        try:
            row = parse_json(line)
        except ValueError:
            # A killed daemon leaves half a row, and its successor appends to it; the row was never complete.
            row = DAMAGED
        rows.append(row if isinstance(row, dict) else DAMAGED)
    return rows
