"""What benches of adapters share: rows of the report, times of calls, memory of processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def row(what: str, ours: float, theirs: float | None, *, unit: str, goal: str = "", is_met: bool | None = None) -> Any:
    """A line of the report."""
    return {"what": what, "ours": ours, "theirs": theirs, "unit": unit, "goal": goal or None, "met": is_met}


def taken(times: dict[str, list[float]], name: str, call: Callable[[], Any]) -> Any:
    """Call, and note how long it took."""
    began_at_s = time.perf_counter()
    result = call()
    times.setdefault(name, []).append(time.perf_counter() - began_at_s)
    return result


def tree_bytes(root: int) -> int:
    """Bytes that a process and its descendants hold."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # gone since it was listed
                continue
            below.setdefault(int(fields[1]), []).append(int(entry.name))
    pids = [root]
    for pid in pids:
        pids.extend(below.get(pid, ()))
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * os.sysconf("SC_PAGE_SIZE")
