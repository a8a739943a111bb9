"""Speed and memory of the environments' adapters, against the bare libraries where there are any, in one run.

Every file of benchmarks/env_benches is a program that measures one environment and prints one JSON object on its last
line: {"environment": .., "notes": [..], "rows": [..]}, a row being {"what", "ours", "theirs", "unit", "goal", "met"}
(`theirs` and `goal` may be null), or {"environment": .., "skipped": reason}. Each runs in a process of its own, one
after another. Run: python benchmarks/bench_envs.py [--only NAME] [--output FILE]
"""

import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
BENCHES = Path(__file__).with_name("env_benches")


def main(
    only: Annotated[list[str] | None, typer.Option(help="Name of a bench; may be given several times.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the report.")] = None,
) -> None:
    """Run the benches and print a report; exit with 1 where a goal was missed."""
    console = Console(stderr=True)
    known = {path.stem: path for path in sorted(BENCHES.glob("*.py")) if not path.stem.startswith("_")}
    unknown = set(only or ()) - set(known)
    if unknown:
        raise typer.BadParameter(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    measured: list[dict[str, Any]] = []
    head = machine()
    for name in only or known:
        console.print(f"measuring {name}")
        measured.append(measure(known[name]))
    report = "\n".join([head, "", *(line for bench in measured for line in section(bench))])
    print(report)
    if output is not None:
        output.write_text(report + "\n", encoding="utf-8")
    if any(row["met"] is False for bench in measured for row in bench.get("rows", ())):
        raise typer.Exit(1)


def measure(path: Path) -> dict[str, Any]:
    """What a bench printed."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(path)], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise typer.BadParameter(f"{path} ended with code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> str:
    """One line about where and when."""
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"{date.today().isoformat()}, {where}, load average {os.getloadavg()[0]:.1f} at the start."


def section(bench: dict[str, Any]) -> list[str]:
    """A bench as Markdown."""
    lines = [f"### {bench['environment']}", ""]
    if "skipped" in bench:
        return [*lines, f"Not run: {bench['skipped']}", ""]
    lines += [*bench["notes"], ""] if bench["notes"] else []
    lines += ["| what | adapter | library | ratio | goal | |", "| --- | --- | --- | --- | --- | --- |"]
    return [*lines, *(table_row(row) for row in bench["rows"]), ""]


def table_row(row: dict[str, Any]) -> str:
    """A row as Markdown; the ratio says how many times less the adapter takes."""
    ours, theirs, unit = row["ours"], row["theirs"], row["unit"]
    library = "" if theirs is None else f"{theirs:,.2f} {unit}"
    ratio = "" if theirs is None else f"{theirs / ours:.2f}x"
    verdict = {None: "", True: "met", False: "MISSED"}[row["met"]]
    return f"| {row['what']} | {ours:,.2f} {unit} | {library} | {ratio} | {row['goal'] or ''} | {verdict} |"


if __name__ == "__main__":
    typer.run(main)
