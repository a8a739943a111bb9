"""`longturn status`: asks daemons how they are and shows who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from longturn.disk import read_json
from longturn.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from longturn.v1 import status_pb2

_MEND_READY = "remove it and start its daemon again"
_SHOWN_FACTS = ("run_id", "policy_version", "training_step", "address", "url")


def status(
    target: Annotated[str, typer.Argument(help="Run folder, or host:port of one daemon.")],
    values: Annotated[bool, typer.Option("--values", help="Also list every counter and gauge.")] = False,
) -> None:
    """Show what each daemon of a run does now, and whom it waits for."""
    from longturn.status import get_status

    table = Table("daemon", "phase", "pid", "up", "waits for", "facts")
    console = Console()
    num_answers = 0
    for name, address in _addresses(target):
        try:
            answer = get_status(address)
        except UnreachableError as error:
            table.add_row(name, "no answer", "", "", "", str(error))
            continue
        num_answers += 1
        waits = "\n".join(f"{wait.peer}: {wait.reason} ({_waited(wait)})" for wait in answer.waits) or "nobody"
        facts = " ".join(f"{fact}={answer.facts[fact]}" for fact in _SHOWN_FACTS if fact in answer.facts)
        table.add_row(answer.daemon, answer.phase, str(answer.pid), f"{answer.uptime_s:.0f} s", waits, facts)
        if values:
            for key in sorted(answer.values):
                table.add_row("", "", "", "", key, f"{answer.values[key]:g}")
    console.print(table)
    if not num_answers:
        raise UnreachableError(_advice(target))


def _advice(target: str) -> str:
    if Path(target).is_dir():
        return f"no daemon of {target} answers; start it again with `longturn train --resume {target}`"
    return (
        f"no daemon answers at {target}. Where each one does: `longturn serve` at env_server.port, `longturn learn` at"
        " learner.status_port, `longturn act` at act.status_port; an engine, and a server behind TLS or a token, at the"
        " status_address in the file that --ready-file names. For a run give its folder"
    )


def _waited(wait: status_pb2.Wait) -> str:
    """Seconds so far, of how many; without a budget the wait has no end of its own."""
    return f"{wait.waited_s:.1f} of {wait.budget_s:g} s" if wait.budget_s else f"{wait.waited_s:.1f} s"


def _addresses(target: str) -> Iterator[tuple[str, str]]:
    folder = Path(target)
    if folder.is_dir():
        files = sorted((folder / "ready").glob("*.json"))
        if not files:
            raise ConfigError(f"{folder}/ready holds no ready file: no daemon of this run has started")
        for file in files:
            facts = read_json(file, mend=_MEND_READY)
            address = facts.get("status_address") or facts.get("address")
            if not address:
                raise ConfigError(f"{file} is damaged (it names no address); {_MEND_READY}")
            yield file.stem, str(address)
    elif ":" in target:
        yield target, target
    else:
        raise ConfigError(f"{target} is neither a run folder nor host:port")
