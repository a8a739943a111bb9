"""What the machine allows the sandbox, found out by trying to break out of it."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from env_server.sandbox.records import LAYERS, Case, Limits, Order, Verdict
from env_server.sandbox.sandbox import SandboxError, launch

INSECURE_VARIABLE = "LONGTURN_INSECURE_SANDBOX"
"""1 in the environment of a worker: programs may run where the sandbox leaves doors open."""
_SECRET = "a text that no program may see"
_LIMITS = Limits(cpu_s=5, wall_s=20.0, total_s=20.0)
# Prints a JSON list of what it could do. Each attempt must fail with an OSError.
_ATTEMPTS = """
import json, os, socket
aims = json.loads(input())
done = []
def attempt(kind, act):
    try:
        act()
    except OSError:
        return
    done.append(kind)
def write(path):
    with open(path, "r+") as file:
        file.write("x")
def say(family, kind, address):
    with socket.socket(family, kind) as end:
        end.settimeout(2)
        end.connect(address)
        end.send(b"x")
attempt("files", lambda: open(aims["file"]).read())
attempt("files", lambda: write(aims["file"]))
attempt("files", lambda: os.chmod(aims["file"], 0o600))
attempt("files", lambda: open(os.path.join(os.path.dirname(aims["file"]), "new"), "w"))
attempt("network", lambda: say(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", aims["tcp"])))
attempt("network", lambda: say(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", aims["udp"])))
attempt("network", lambda: say(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + aims["unix"]))
attempt("processes", lambda: os.kill(aims["process"], 0))
print(json.dumps(sorted(set(done))))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The layers that can be had here, and what they leave open."""

    layers: frozenset[str]
    missing: dict[str, str]
    """Layers that cannot be had, each with the reason."""
    open_doors: tuple[str, ...]
    """Of `files`, `network` and `processes`, those that a program can reach."""

    @property
    def is_whole(self) -> bool:
        """Whether a program can reach nothing outside."""
        return not self.open_doors

    def explain(self) -> str:
        """One line for whoever must decide."""
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(self.missing.items()))
        return f"programs can reach {', '.join(self.open_doors) or 'nothing'} outside the sandbox ({reasons})"


@cache
def isolation() -> Isolation:
    """What this machine allows; found out once per process. Raises SandboxError if no program runs at all."""
    return find_isolation(LAYERS)


def find_isolation(layers: frozenset[str]) -> Isolation:
    """The same with at most these layers."""
    with tempfile.TemporaryDirectory(prefix="longturn-sandbox-") as folder, _Ears() as ears:
        # Open to every user: what protects it must be the sandbox.
        os.chmod(folder, 0o777)
        secret = Path(folder) / "secret"
        secret.write_text(_SECRET, encoding="utf-8")
        secret.chmod(0o666)
        aims = {"file": str(secret), "process": os.getpid(), **ears.addresses}
        cases = (Case(stdin=json.dumps(aims)),)
        report = launch(Order(program=_ATTEMPTS, cases=cases, limits=_LIMITS, layers=layers, is_strict=False))
    (outcome,) = report.outcomes
    if outcome.verdict is not Verdict.FINISHED:
        raise SandboxError(f"a harmless program failed in the sandbox: {outcome.verdict.value} {outcome.error}")
    had = layers - report.missing.keys()
    doors = set(json.loads(outcome.output))
    if not had & {"namespaces", "seccomp"}:
        doors.add("processes")  # nothing keeps one that it starts from outliving the sandbox
    return Isolation(layers=had, missing=report.missing, open_doors=tuple(sorted(doors)))


class _Ears:
    """Sockets that a program must not be able to reach."""

    def __enter__(self) -> _Ears:
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"longturn-sandbox-{os.getpid()}-{self._tcp.getsockname()[1]}"
        self._unix.bind(f"\0{name}")
        self._unix.listen()
        self.addresses = {
            "tcp": self._tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "unix": name,
        }
        return self

    def __exit__(self, *_: object) -> None:
        for ear in (self._tcp, self._udp, self._unix):
            ear.close()
