"""What crosses into the sandbox and back, as it looks outside."""

from __future__ import annotations

import enum
import marshal
import signal
from dataclasses import asdict, dataclass, field

from env_server.sandbox import job

LAYERS = frozenset({"namespaces", "landlock", "seccomp"})
"""What may shut a program in; see the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one run of a program, unless said otherwise."""

    cpu_s: int = 4
    wall_s: float = 20.0
    memory_bytes: int = 512 * 2**20
    """Address space, the interpreter's own 30 MB included."""
    output_bytes: int = 2**20
    """Of standard output, and of any file."""
    num_processes: int = 16
    """Processes and threads."""
    num_files: int = 32
    total_s: float = 30.0
    """Wall time of all runs of an order; those that have not begun by then do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: a program that reads `stdin`, or a call of one of its functions."""

    stdin: str = ""
    function: str = ""
    """Name of a function, or of a method of its class Solution; empty: the program itself."""
    arguments: str = "[]"
    """JSON array."""


class Verdict(enum.Enum):
    """How a run ended."""

    FINISHED = job.FINISHED
    ERROR = job.ERROR
    """An exception, or an exit status other than 0."""
    KILLED = job.KILLED
    """By a signal."""
    CPU_LIMIT = job.CPU_LIMIT
    TIME_LIMIT = job.TIME_LIMIT
    NOT_RUN = job.NOT_RUN
    """An earlier run met a time limit, or `total_s` was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run left behind."""

    verdict: Verdict
    output: str = ""
    """Standard output; for a call the result as JSON."""
    error: str = ""
    """One line for ERROR; the signal's name for KILLED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the launcher is asked to do."""

    program: str
    cases: tuple[Case, ...]
    limits: Limits = field(default_factory=Limits)
    layers: frozenset[str] = LAYERS
    is_strict: bool = True
    """Whether a layer that cannot be had is an error; otherwise it is left out and named."""

    def pack(self) -> bytes:
        """As it goes in; lone surrogates of any text become question marks."""
        tree = {
            "program": _plain(self.program),
            "cases": [{name: _plain(text) for name, text in asdict(case).items()} for case in self.cases],
            "limits": asdict(self.limits),
            "layers": sorted(self.layers),
            "is_strict": self.is_strict,
        }
        return marshal.dumps(tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the launcher answers."""

    outcomes: tuple[Outcome, ...]
    """One per case."""
    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Layers that could not be had, each with the reason."""

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """What `job.pack_report` packed; ValueError if it is cut short."""
        head, _, rest = data.partition(b"\n")
        items: list[tuple[str, str, str]] = []
        while rest:
            item, rest = _unpack_item(rest)
            items.append(item)
        missing = {name: reason for name, _, reason in items[: int(head)]}
        outcomes = tuple(
            Outcome(
                verdict=Verdict(verdict), output=output, error=_signal_name(error) if verdict == job.KILLED else error
            )
            for verdict, output, error in items[int(head) :]
        )
        return cls(outcomes=outcomes, missing=missing)


def _unpack_item(data: bytes) -> tuple[tuple[str, str, str], bytes]:
    head, _, rest = data.partition(b"\n")
    name, num_output, num_error = head.split()
    end = int(num_output) + int(num_error)
    if len(rest) < end:
        raise ValueError("the report is cut short")
    output, error = rest[: int(num_output)], rest[int(num_output) : end]
    return (name.decode(), output.decode("utf-8", "replace"), error.decode("utf-8", "replace")), rest[end:]


def _signal_name(number: str) -> str:
    try:
        return signal.Signals(int(number)).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
