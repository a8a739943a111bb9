"""Environment serving: our server against bare gRPC, OpenEnv and a direct call, in one interleaved run.

Echo answers 400 bytes and does no work; leases, exactly-once and worker processes stay on. Servers run for the whole
time, each load runs alone for a moment per round in a process of its own, and rows are medians over rounds. Server
processor time includes the workers. Run: python benchmarks/bench_env_rpc.py [--openenv-python PYTHON] [--textworld]
"""

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import grpc
import typer
from rich.console import Console

from env_server.environment import Environment
from env_server.environments.echo import EchoEnvironment
from longturn.v1 import environment_pb2, environment_pb2_grpc

HERE = Path(__file__).parent
Report = dict[str, float]


@dataclass(frozen=True, slots=True)
class Contender:
    """One row: a name, and what plays SESSIONS for SECONDS."""

    name: str
    load: Callable[[int, float], Report]


@contextmanager
def running(command: list[str], is_ready: Callable[[], bool]) -> Iterator[int]:
    """A server process; yields its id."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not is_ready():
            if process.poll() is not None:
                raise typer.BadParameter(f"{' '.join(command)} ended with code {process.returncode}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    """Whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def remote(command: list[str], *, feed: str = "") -> Callable[[int, float], Report]:
    """A load in a process of its own."""

    def load(num_sessions: int, seconds: float) -> Report:
        arguments = [*command, str(num_sessions), str(seconds)]
        done = subprocess.run(arguments, input=feed, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)

    return load


def direct(make: Callable[[], Environment], task_ids: list[str]) -> Callable[[int, float], Report]:
    """Method calls in this process, one session after the other."""

    def load(num_sessions: int, seconds: float) -> Report:
        began_s = time.perf_counter()
        environments = [make() for _ in range(num_sessions)]
        for index, environment in enumerate(environments):
            environment.reset(task_ids[index % len(task_ids)], 0, {})
        start_s = time.perf_counter() - began_s
        steps, began_s, began_cpu_s = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began_s < seconds:
            for index, environment in enumerate(environments):
                if environment.step("look").is_terminal:
                    environment.reset(task_ids[index % len(task_ids)], 0, {})
            steps += num_sessions
        took_s = time.perf_counter() - began_s
        return {
            "steps": steps,
            "failed": 0,
            "seconds": took_s,
            "start_ms": start_s / num_sessions * 1e3,
            "p50_ms": took_s / steps * 1e3,
            "p99_ms": took_s / steps * 1e3,
            "server_cpu_s": time.process_time() - began_cpu_s,
        }

    return load


def direct_on_every_core(task_ids: list[str]) -> Callable[[int, float], Report]:
    """TextWorld by method calls, in a process per core that are all busy at once, as a server's workers are."""
    num_cores = len(os.sched_getaffinity(0))
    code = (
        "import json, sys; from bench_env_rpc import direct;"
        " from env_server.environments.textworld import TextWorldEnvironment as kind; kind.warm_up();"
        " print('ready', flush=True); sys.stdin.readline();"
        " print(json.dumps(direct(kind, sys.argv[3:])(int(sys.argv[1]), float(sys.argv[2]))))"
    )

    def load(num_sessions: int, seconds: float) -> Report:
        arguments = [sys.executable, "-c", code, str(num_sessions // num_cores), str(seconds), *task_ids]
        processes = [
            subprocess.Popen(arguments, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(num_cores)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        reports: list[Report] = [json.loads(process.communicate()[0]) for process in processes]
        summed = {"steps", "failed", "server_cpu_s"}
        return {key: sum(report[key] for report in reports) / (1 if key in summed else num_cores) for key in reports[0]}

    return load


def ours(stack: ExitStack, environment: str) -> tuple[str, int]:
    """Start our server; returns address and process id."""
    port = free_port()
    command = [sys.executable, "-m", "env_server", "--env", environment, "--port", str(port)]
    return f"127.0.0.1:{port}", stack.enter_context(running(command, lambda: is_serving(port)))


def is_serving(port: int) -> bool:
    """Whether our server answers."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
        try:
            return bool(stub.GetServerInfo(environment_pb2.GetServerInfoRequest(), timeout=1.0).server_id)
        except grpc.RpcError:
            return False


def echo_contenders(stack: ExitStack, openenv_python: str | None) -> list[Contender]:
    """All rows of the echo table, their servers started."""
    load = [sys.executable, str(HERE / "env_load.py")]
    address, pid = ours(stack, "echo")
    contenders = [
        Contender(f"ours, {road}", remote([*load, road, address, str(pid), "echo"]))
        for road in ("client", "stream", "unary")
    ]
    if openenv_python:
        contenders += [openenv(stack, openenv_python, mode) for mode in ("sync", "async")]
    bare_port = free_port()
    bare = [sys.executable, str(HERE / "env_bare.py"), str(bare_port)]
    bare_pid = stack.enter_context(running(bare, lambda: is_open(bare_port)))
    bare_address = f"127.0.0.1:{bare_port}"
    contenders.append(Contender("bare gRPC, stream", remote([*load, "stream", bare_address, str(bare_pid), "bare"])))
    contenders.append(Contender("bare gRPC, unary", remote([*load, "unary", bare_address, str(bare_pid), "bare"])))
    contenders.append(Contender("direct call", direct(EchoEnvironment, ["echo/train/000000"])))
    return contenders


def openenv(stack: ExitStack, python: str, mode: str) -> Contender:
    """OpenEnv's own server and client."""
    peer, port = [python, str(HERE / "env_openenv.py")], free_port()
    pid = stack.enter_context(running([*peer, "serve", str(port), mode], lambda: is_open(port)))
    return Contender(f"OpenEnv, {mode}", remote([*peer, "load", f"127.0.0.1:{port}", str(pid)]))


def blocking_contenders(stack: ExitStack, openenv_python: str) -> list[Contender]:
    """Steps that block for 2 ms, in an environment that says it is thread-safe."""
    address, pid = ours(stack, "echo")
    load = [sys.executable, str(HERE / "env_load.py"), "client", address, str(pid), "sleep"]
    return [Contender("ours, client", remote(load)), openenv(stack, openenv_python, "sleep")]


def textworld_contenders(stack: ExitStack) -> list[Contender]:
    """Real games: direct calls on every core, and our server with its workers."""
    from env_server.environments.textworld import TextWorldEnvironment

    filters = {"family": "coin_collector", "level": "30"}
    task_ids = [task.task_id for task in TextWorldEnvironment.tasks("train", 0, 8, filters)]
    TextWorldEnvironment.warm_up()
    for task_id in task_ids:
        TextWorldEnvironment.prepare(task_id, {}, 0)
    address, pid = ours(stack, "textworld")
    load = [sys.executable, str(HERE / "env_load.py"), "client", address]
    feed = " ".join(task_ids * 64)
    return [
        Contender("ours, client", remote([*load, str(pid), "textworld"], feed=feed)),
        Contender("direct call", direct_on_every_core(task_ids)),
    ]


def measure(contenders: list[Contender], num_sessions: int, rounds: int, seconds: float) -> dict[str, list[Report]]:
    """Every contender in every round, one after the other."""
    reports: dict[str, list[Report]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            reports[contender.name].append(contender.load(num_sessions, seconds))
    return reports


def table(title: str, reports: dict[str, list[Report]], base: str) -> str:
    """A markdown table: medians, and the median over rounds of the ratio to `base` in the same round."""
    lines = [
        f"### {title}",
        "",
        f"| row | steps/s | ratio to {base} (lowest-highest) | P50 ms | P99 ms | server s/1000 | ratio | start ms"
        " | ratio | failed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rates = {name: [report["steps"] / report["seconds"] for report in rows] for name, rows in reports.items()}
    for name, rows in reports.items():
        ratios = [rate / other for rate, other in zip(rates[name], rates[base], strict=True)]
        cpu_ratio = statistics.median(map(_cpu_ratio, rows, reports[base]))
        start_ratio = statistics.median(
            row["start_ms"] / other["start_ms"] for row, other in zip(rows, reports[base], strict=True)
        )
        middle = {key: statistics.median(report[key] for report in rows) for key in ("p50_ms", "p99_ms", "start_ms")}
        server = statistics.median(report["server_cpu_s"] / report["steps"] * 1000 for report in rows)
        lines.append(
            f"| {name} | {statistics.median(rates[name]):,.0f} | {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f}-{max(ratios):.2f}) | {middle['p50_ms']:.3f} | {middle['p99_ms']:.2f}"
            f" | {server:.4f} | {cpu_ratio:.3f} | {middle['start_ms']:.2f} | {start_ratio:.3f}"
            f" | {sum(report['failed'] for report in rows):.0f} |"
        )
    return "\n".join([*lines, ""])


def _cpu_ratio(row: Report, other: Report) -> float:
    return row["server_cpu_s"] / row["steps"] / (other["server_cpu_s"] / other["steps"])


def main(
    rounds: Annotated[int, typer.Option(help="Rounds; every row is measured once in each.")] = 3,
    seconds: Annotated[float, typer.Option(help="Length of one measurement.")] = 1.0,
    sessions: Annotated[list[int] | None, typer.Option(help="Session counts; repeatable.")] = None,
    openenv_python: Annotated[str | None, typer.Option(help="A Python with openenv 0.10 installed.")] = None,
    echo: Annotated[bool, typer.Option(help="Measure echo.")] = True,
    blocking: Annotated[bool, typer.Option(help="Measure steps that block; needs --openenv-python.")] = False,
    textworld: Annotated[bool, typer.Option(help="Measure real games too.")] = False,
    brief: Annotated[bool, typer.Option(help="Only our client and OpenEnv.")] = False,
    output: Annotated[Path | None, typer.Option(help="Markdown file to write.")] = None,
) -> None:
    """Measure and print markdown."""
    load = os.getloadavg()[0]
    parts = [
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, grpcio {grpc.__version__},"
        f" load average {load:.1f} at the start; {rounds} rounds of {seconds:g} s.\n"
    ]
    base = "OpenEnv, sync" if openenv_python else "bare gRPC, unary"
    with ExitStack() as stack:
        contenders = echo_contenders(stack, openenv_python) if echo else []
        if brief:
            contenders = [one for one in contenders if one.name == "ours, client" or one.name.startswith("OpenEnv")]
        for number in (sessions or [1, 64, 512]) if echo else []:
            parts.append(table(f"Echo, {number} sessions", measure(contenders, number, rounds, seconds), base))
    if blocking and openenv_python:
        with ExitStack() as stack:
            contenders = blocking_contenders(stack, openenv_python)
            for number in sessions or [64, 512]:
                reports = measure(contenders, number, rounds, seconds)
                parts.append(table(f"A step that blocks for 2 ms, {number} sessions", reports, "OpenEnv, sleep"))
    if textworld:
        with ExitStack() as stack:
            reports = measure(textworld_contenders(stack), 64, rounds, 4 * seconds)
            parts.append(table("TextWorld coin_collector level 30, 64 sessions", reports, "direct call"))
    text = "\n".join(parts)
    Console(soft_wrap=True).print(text, markup=False, highlight=False)
    if output is not None:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
