"""What crosses into the sandbox and back, as it looks inside.

Plain classes: the standard library's dataclasses, enum and json take longer to import than most programs to run.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FINISHED, ERROR, KILLED, CPU_LIMIT, TIME_LIMIT, NOT_RUN = (
    "finished",
    "error",
    "killed",
    "cpu_limit",
    "time_limit",
    "not_run",
)
"""How a run ends; `records.Verdict` says what each means."""


class Case:
    """One run; see `records.Case`."""

    def __init__(self, tree: dict[str, str]) -> None:
        self.stdin = tree["stdin"]
        self.function = tree["function"]
        self.arguments = tree["arguments"]


class Limits:
    """See `records.Limits`."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.cpu_s: int = tree["cpu_s"]
        self.wall_s: float = tree["wall_s"]
        self.memory_bytes: int = tree["memory_bytes"]
        self.output_bytes: int = tree["output_bytes"]
        self.num_processes: int = tree["num_processes"]
        self.num_files: int = tree["num_files"]
        self.total_s: float = tree["total_s"]


class Job:
    """See `records.Order`."""

    def __init__(self, data: bytes) -> None:
        """Take what `records.Order.pack` packed."""
        tree: dict[str, Any] = marshal.loads(data)
        self.program: str = tree["program"]
        self.cases = [Case(case) for case in tree["cases"]]
        self.limits = Limits(tree["limits"])
        self.layers: frozenset[str] = frozenset(tree["layers"])
        self.is_strict: bool = tree["is_strict"]


class Result:
    """How one run ended."""

    def __init__(self, verdict: str, output: bytes = b"", error: bytes = b"") -> None:
        self.verdict = verdict
        self.output = output
        self.error = error

    def pack(self) -> bytes:
        """As it goes out: a line with the verdict and two lengths, then the two texts."""
        return b"%s %d %d\n" % (self.verdict.encode(), len(self.output), len(self.error)) + self.output + self.error


def pack_report(missing: dict[str, str], results: list[Result]) -> bytes:
    """As `records.Report.unpack` takes it: a missing layer is written like a result that is called by its name."""
    layers = [Result(name, error=reason.encode("utf-8", "replace")) for name, reason in missing.items()]
    return b"%d\n" % len(layers) + b"".join(item.pack() for item in (*layers, *results))
