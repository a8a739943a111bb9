"""Phases of a run: each is done once; its wall time and result are kept, and a resumed run skips it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from longturn.disk import DiskError, naming, read_json, write_json
from longturn.errors import ConfigError

Result = Mapping[str, object]
_SPENT = "spent"


def phase_marker(folder: Path, name: str) -> Path:
    """The file that exists once a phase is finished."""
    return folder / f"{name}.json"


def finished_phases(folder: Path) -> list[str]:
    """Names of the phases that an earlier start finished."""
    return sorted(path.stem for path in folder.glob("*.json") if path.stem != _SPENT)


class PhaseLog:
    """Markers of finished phases: `phases/NAME.json` holds `wall_s` and the phase's result."""

    def __init__(self, folder: Path, *, say: Callable[[str], None]) -> None:
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._say = say
        self._spent: dict[str, float] = self._read_spent()

    def once(self, name: str, work: Callable[[], Result]) -> Result:
        """Run `work` unless an earlier start of this run finished it; return its result either way."""
        marker = phase_marker(self._folder, name)
        if marker.exists():
            self._say(f"{name}: done before")
            return _result(marker)
        started_s = time.monotonic()
        try:
            result = work()
        except BaseException:
            self._spend_in_vain(name, time.monotonic() - started_s)
            raise
        self._spend(name, time.monotonic() - started_s)
        wall_s = self._spent[name]
        write_json(marker, {"wall_s": wall_s, "result": dict(result)})
        self._say(f"{name}: done in {wall_s:.0f} s")
        return result

    def wall_times_s(self) -> dict[str, float]:
        """Wall time of each phase so far, over all starts of this run."""
        return dict(self._spent)

    def _spend(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds
        write_json(phase_marker(self._folder, _SPENT), self._spent)

    def _spend_in_vain(self, name: str, seconds: float) -> None:
        """Count an interruption too: the summary states what a run really took."""
        try:
            self._spend(name, seconds)
        except DiskError as error:
            # Raised, it would hide why the phase ended.
            self._say(f"{name}: its time is not kept: {error}")

    def _read_spent(self) -> dict[str, float]:
        path = phase_marker(self._folder, _SPENT)
        if not path.exists():
            return {}
        mend = "remove it to go on without the times so far"
        try:
            return {name: float(str(value)) for name, value in read_json(path, mend=mend).items()}
        except ValueError as error:
            raise ConfigError(f"{path} is damaged ({error}); {mend}") from error


def _result(marker: Path) -> Result:
    mend = "remove it to repeat that phase"
    result = read_json(marker, mend=mend).get("result")
    if not isinstance(result, dict):
        raise ConfigError(f"{marker} is damaged (it holds no result); {mend}")
    return result
