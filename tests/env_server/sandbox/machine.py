"""What the sandbox can do on the machine that runs the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from env_server.sandbox.isolation import find_isolation
from env_server.sandbox.records import LAYERS

LAYER_SETS = {
    "all": LAYERS,
    "namespaces": frozenset({"namespaces"}),
    "landlock and seccomp": frozenset({"landlock", "seccomp"}),
}


def require_isolation(layers: frozenset[str]) -> None:
    """Skip the test, and say why, where these layers do not shut a program in."""
    here = find_isolation(layers)
    if not here.is_whole or here.layers != layers:
        pytest.skip(f"the sandbox's attack tests did not run with {', '.join(sorted(layers))}: {here.explain()}")


def sandbox_processes() -> list[int]:
    """Processes of the sandboxes below this one, whoever else runs sandboxes; needs the fixture `adopts_orphans`."""
    return [pid for pid in _descendants(os.getpid()) if _is_sandbox(pid)]


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # gone since it was listed
            continue
        children.setdefault(parent, []).append(pid)
    found = [ancestor]
    for pid in found:
        found += children.get(pid, ())
    return found[1:]


def _is_sandbox(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):  # gone since it was listed
        return False
    return words[0] == sys.executable.encode() and b"env_server.sandbox.launcher" in words
