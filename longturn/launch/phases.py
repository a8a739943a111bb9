"""Phases of a run: each is done once; its wall time and result are kept, and a resumed run skips it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from longturn.errors import ConfigError

Result = Mapping[str, object]


def phase_marker(folder: Path, name: str) -> Path:
    """The file that exists once a phase is finished."""
    return folder / f"{name}.json"


class PhaseLog:
    """Markers of finished phases: `phases/NAME.json` holds `wall_s` and the phase's result."""

    def __init__(self, folder: Path, *, say: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._say = say
        self._spent: dict[str, float] = self._read_spent()

    def once(self, name: str, work: Callable[[], Result]) -> Result:
        """Run `work` unless an earlier start of this run finished it; return its result either way."""
        marker = phase_marker(self._folder, name)
        if marker.exists():
            self._say(f"{name}: done before")
            return _read(marker)["result"]  # type: ignore[return-value]  # written below
        started_s = time.monotonic()
        try:
            result = work()
        finally:
            # Time spent before an interruption counts: the summary states what a run really took.
            self._spend(name, time.monotonic() - started_s)
        wall_s = self._spent[name]
        _write(marker, {"wall_s": wall_s, "result": dict(result)})
        self._say(f"{name}: done in {wall_s:.0f} s")
        return result

    def wall_times_s(self) -> dict[str, float]:
        """Wall time of each phase so far, over all starts of this run."""
        return dict(self._spent)

    def _spend(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds
        _write(self._folder / "spent.json", self._spent)

    def _read_spent(self) -> dict[str, float]:
        path = self._folder / "spent.json"
        return {name: float(str(value)) for name, value in _read(path).items()} if path.exists() else {}


def _read(path: Path) -> dict[str, object]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is damaged ({error}); remove it to repeat that phase") from error


def _write(path: Path, content: Mapping[str, object]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(path)
