"""What the kernel says of a server's processes: who they are and what they hold. Linux only (`/proc`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process and all its descendants hold."""

    rss_bytes: int
    num_descriptors: int
    num_processes: int


def marked(mark: str) -> list[int]:
    """Processes that inherited an environment variable with this value, wherever they hang in the process tree."""
    return [pid for pid in _pids() if mark.encode() in _read(pid, "environ")]


def children(pid: int) -> list[int]:
    """Direct children."""
    return [child for child, parent in _parents().items() if parent == pid]


def command_line(pid: int) -> list[str]:
    """Its arguments; empty if it is gone."""
    return _read(pid, "cmdline").decode(errors="replace").split("\0")[:-1]


def usage(pid: int) -> Usage:
    """What the tree below a process holds now."""
    pids = _tree(pid)
    return Usage(
        rss_bytes=sum(map(_rss_bytes, pids)),
        num_descriptors=sum(map(_num_descriptors, pids)),
        num_processes=len(pids),
    )


def _tree(root: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        below.setdefault(parent, []).append(pid)
    tree = [root]
    for pid in tree:
        tree.extend(below.get(pid, ()))
    return tree


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for pid in _pids():
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if fields and fields[0] != b"Z":  # a zombie holds nothing
            parents[pid] = int(fields[1])
    return parents


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())


def _rss_bytes(pid: int) -> int:
    fields = _read(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _num_descriptors(pid: int) -> int:
    try:
        return len(os.listdir(_PROC / str(pid) / "fd"))
    except OSError:  # gone since it was listed, or not ours
        return 0


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # gone since it was listed, or not ours
        return b""
