"""`longturn doctor`: looks at this machine and says which command mends what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from longturn.extras import MODULES_BY_EXTRA, OPTIONAL_EXTRAS, how_to_install
from longturn.java import INSTALL_JAVA, find_java

_MIN_FREE_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the answer. `mend` is empty where all is well; `is_needed` says whether training needs it."""

    subject: str
    fact: str
    mend: str = ""
    is_needed: bool = True


def doctor() -> None:
    """Check this machine for everything `longturn train` needs; exit with code 1 if something needed is missing."""
    console = Console(soft_wrap=True, highlight=False)
    findings = [check() for check in _CHECKS] + [_extra(extra) for extra in MODULES_BY_EXTRA]
    for finding in findings:
        mark = "ok  " if not finding.mend else ("FAIL" if finding.is_needed else "note")
        console.print(f"{mark}  {finding.subject}: {finding.fact}", markup=False)
        if finding.mend:
            console.print(f"      {finding.mend}", markup=False)
    if any(finding.mend and finding.is_needed for finding in findings):
        raise typer.Exit(1)


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    is_supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    return Finding(
        subject="python",
        fact=version,
        mend="" if is_supported else "install Python 3.11 or 3.12, then: make clean train PYTHON=python3.12",
    )


def _compiler() -> Finding:
    path = shutil.which("cc") or shutil.which("gcc")
    return Finding(
        subject="C compiler",
        fact=path or "not found",
        mend="" if path else "games are interpreted by a library built from source: apt-get install gcc make",
    )


def _java() -> Finding:
    path = find_java()
    return Finding(
        subject="Java runtime",
        fact=path or "not found",
        mend="" if path else f"scienceworld and textworld_express run on it: {INSTALL_JAVA}",
        is_needed=False,
    )


def _cores() -> Finding:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return Finding(
        subject="cores",
        fact=str(num_cores),
        mend="" if num_cores >= 2 else "one core trains, at half the speed",
        is_needed=False,
    )


def _threads() -> Finding:
    value = os.environ.get("OMP_NUM_THREADS", "")
    return Finding(
        subject="OMP_NUM_THREADS",
        fact=value or "not set",
        mend="" if value == "1" else "the daemons are the parallelism: export OMP_NUM_THREADS=1",
        is_needed=False,
    )


def _disk() -> Finding:
    free_bytes = shutil.disk_usage(Path.cwd()).free
    return Finding(
        subject="disk",
        fact=f"{free_bytes / 2**30:.1f} GiB free in {Path.cwd()}",
        mend="" if free_bytes >= _MIN_FREE_BYTES else "a run needs about 2 GiB: free some, or set run.folder",
    )


def _ports() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
    except OSError as error:
        return Finding(subject="loopback ports", fact=str(error), mend="bring the loopback up: ip link set lo up")
    return Finding(subject="loopback ports", fact=f"usable ({port} was free)")


def _socket_files() -> Finding:
    try:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
            server.bind(str(Path(folder) / "s"))
    except OSError as error:
        return Finding(
            subject="socket files",
            fact=str(error),
            mend="set learner.dispatch.address = tcp://127.0.0.1:PORT",
        )
    return Finding(subject="socket files", fact="usable")


def _extra(extra: str) -> Finding:
    missing = [name for name in MODULES_BY_EXTRA[extra] if importlib.util.find_spec(name) is None]
    return Finding(
        subject=f"extra {extra}",
        fact=f"missing {', '.join(missing)}" if missing else "installed",
        mend=how_to_install(extra) if missing else "",
        is_needed=extra not in OPTIONAL_EXTRAS,
    )


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _compiler,
    _java,
    _cores,
    _threads,
    _disk,
    _ports,
    _socket_files,
)
