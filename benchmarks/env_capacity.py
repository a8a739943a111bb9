"""How much one env server holds: idle episodes, sleeping games, and thousands of sessions over ten minutes.

Each command starts a server of its own, prints Markdown and ends with code 1 where something failed:

    python benchmarks/env_capacity.py idle --episodes 10000
    python benchmarks/env_capacity.py asleep --episodes 16384
    python benchmarks/env_capacity.py endure --sessions 2048 --seconds 600
"""

import asyncio
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from bench_env_rpc import free_port, is_serving, running
from env_benches._measuring import tree_bytes
from rich.console import Console

from clients.config import EnvClientConfig
from clients.environment import EnvClient
from clients.episode import RemoteEpisode
from longturn.errors import LongturnError
from longturn.records import Task
from longturn.status import get_status

T = TypeVar("T")
app = typer.Typer(help=__doc__, no_args_is_help=True)
AT_ONCE = 256
"""Calls that the client has in flight while it starts episodes or goes round them."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server under test."""

    address: str
    pid: int

    @property
    def tree_bytes(self) -> int:
        """Resident memory of the server and all its workers; pages that they share count once for each."""
        return tree_bytes(self.pid)

    @property
    def own_bytes(self) -> int:
        """Resident memory of the server process alone."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def num_threads(self) -> int:
        """Threads of the server process; a worker has at most env_server.threads_per_worker beside its own."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def count(self, name: str) -> int:
        """A counter or gauge."""
        return round(get_status(self.address, timeout_s=60.0).values.get(name, 0))


@contextmanager
def served(environment: str, *settings: str) -> Iterator[Server]:
    """A server of one environment with room for many episodes."""
    port = free_port()
    command = [sys.executable, "-m", "env_server", "--env", environment, "--port", str(port)]
    command += [part for setting in ("max_episodes=100000", *settings) for part in ("--set", setting)]
    with running(command, lambda: is_serving(port)) as pid:
        yield Server(f"127.0.0.1:{port}", pid)


async def spread(number: int, call: Callable[[int], Awaitable[T]]) -> list[T]:
    """`call` for each index, AT_ONCE at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> T:
        async with gate:
            return await call(index)

    return await asyncio.gather(*map(one, range(number)))


def told(title: str, rows: dict[str, object], failures: Sequence[str]) -> None:
    """Print the table and end with code 1 if something failed."""
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
    lines = [
        f"### {title}",
        "",
        f"{machine}, load average {os.getloadavg()[0]:.1f} at the end",
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {value:,.2f} |" if isinstance(value, float) else f"| {name} | {value} |"
        for name, value in rows.items()
    ]
    lines += ["", *(f"FAILED: {failure}" for failure in failures)]
    Console(soft_wrap=True).print("\n".join(lines), markup=False, highlight=False)
    raise typer.Exit(bool(failures))


@app.command()
def idle(
    episodes: Annotated[int, typer.Option(help="Episodes that idle at once.")] = 10_000,
    turns: Annotated[int, typer.Option(help="Steps that each has taken.")] = 30,
) -> None:
    """Memory and threads per idle episode, beyond its environment: echo, awake, no state dir."""
    rows: dict[str, object] = {}
    with served("echo", "hibernate_idle_s=0.0") as server:

        async def main() -> list[str]:
            async with EnvClient(EnvClientConfig(address=server.address, connect_budget_s=600.0)) as envs:
                await spread(64, lambda index: _played(envs, _echo(index), turns))
                own, tree, threads = server.own_bytes, server.tree_bytes, server.num_threads
                held = await spread(episodes, lambda index: _played(envs, _echo(index), turns))
                rows["idle episodes"] = len(held)
                rows["turns of each"] = turns
                rows["server process, kB per episode"] = (server.own_bytes - own) / episodes / 1000
                rows["workers, their environments included, kB per episode"] = (
                    (server.tree_bytes - server.own_bytes - tree + own) / episodes / 1000
                )
                rows["threads of the server more than with 64 episodes"] = server.num_threads - threads
                rows["server process with all, MB"] = server.own_bytes / 1e6
                after = await spread(episodes, lambda index: held[index].step("amber"))
                return [] if all(result.turn_index == turns + 1 for result in after) else ["a turn index is wrong"]

        failures = asyncio.run(main())
    told("Idle episodes", rows, failures)


async def _played(envs: EnvClient, task: Task, turns: int) -> RemoteEpisode:
    episode = await envs.start(task, max_turns=1_000_000)
    for _ in range(turns):
        await episode.step("amber")
    return episode


def _echo(index: int, horizon: int = 1_000_000) -> Task:
    return Task(environment="echo", task_id=f"echo/train/{index % 1_000_000:06d}", knobs={"horizon": horizon})


@app.command()
def asleep(
    episodes: Annotated[int, typer.Option(help="Episodes that live at once.")] = 16_384,
    awake: Annotated[int, typer.Option(help="Episodes that hold worker memory at once.")] = 512,
    turns: Annotated[int, typer.Option(help="Steps that each takes before it sleeps.")] = 4,
    games: Annotated[int, typer.Option(help="Different games.")] = 16,
    limit_gib: Annotated[float, typer.Option(help="Most memory of server and workers.")] = 4.0,
) -> None:
    """Live TextWorld games, most of them hibernated; each answers its next step as a game that never slept."""
    from env_server.environments.textworld import TextWorldEnvironment

    filters = {"family": "coin_collector", "level": "5"}
    tasks = [
        Task(environment="textworld", task_id=info.task_id)
        for info in TextWorldEnvironment.tasks("train", 0, games, filters)
    ]
    actions = ["look", "inventory", "go north", "go east", "go south", "go west"]
    rows: dict[str, object] = {}
    failures: list[str] = []
    peak_bytes = 0
    with served("textworld", f"max_awake={awake}", "hibernate_idle_s=0.0", "lease_s=86400.0") as server:

        async def watch() -> None:
            nonlocal peak_bytes
            while True:
                peak_bytes = max(peak_bytes, await asyncio.to_thread(lambda: server.tree_bytes))
                await asyncio.sleep(2.0)

        async def began(envs: EnvClient, index: int) -> RemoteEpisode:
            episode = await envs.start(tasks[index % games], max_turns=1_000_000)
            for turn in range(turns):
                await episode.step(actions[turn % len(actions)])
            return episode

        async def expected(envs: EnvClient, index: int) -> bytes:
            episode = await began(envs, index)
            result = await episode.step(actions[turns % len(actions)])
            await episode.end()
            return result.state_hash

        async def main() -> None:
            patient = EnvClientConfig(
                address=server.address, connect_budget_s=600.0, step_timeout_s=3600.0, start_timeout_s=3600.0
            )
            async with EnvClient(patient) as envs:
                watcher = asyncio.create_task(watch())
                right = await spread(games, lambda index: expected(envs, index))
                began_s = time.monotonic()
                held = await spread(episodes, lambda index: began(envs, index))
                rows["live episodes"] = server.count("server/episode/num_live")
                rows["of these awake"] = server.count("server/episode/num_awake")
                rows["put to sleep so far"] = server.count("server/episode/num_hibernated")
                rows["memory with all of them, GiB"] = server.tree_bytes / 2**30
                rows["start and first turns took, s"] = time.monotonic() - began_s
                began_s = time.monotonic()
                results = await spread(episodes, lambda index: held[index].step(actions[turns % len(actions)]))
                rows["one more step of each took, s"] = time.monotonic() - began_s
                equal = [result.state_hash == right[index % games] for index, result in enumerate(results)]
                rows["answered as a game that never slept"] = sum(equal)
                rows["replays"] = server.count("server/episode/num_replays")
                watcher.cancel()
                if not all(equal):
                    failures.append(f"{equal.count(False)} steps differ")

        asyncio.run(main())
    rows["highest memory of server and workers, GiB"] = peak_bytes / 2**30
    if peak_bytes > limit_gib * 2**30:
        failures.append(f"more than {limit_gib:g} GiB")
    told("TextWorld games asleep", rows, failures)


@app.command()
def endure(
    sessions: Annotated[int, typer.Option(help="Sessions that step without a pause.")] = 2048,
    seconds: Annotated[float, typer.Option(help="How long.")] = 600.0,
    horizon: Annotated[int, typer.Option(help="Turns of an episode; the session then starts another.")] = 200,
) -> None:
    """Steps without a failure while episodes end and start all the time."""
    counts: Counter[str] = Counter()
    slowest_s = 0.0
    with served("echo") as server:

        async def play(envs: EnvClient, index: int, end_s: float) -> None:
            nonlocal slowest_s
            while time.monotonic() < end_s:
                try:
                    episode = await envs.start(_echo(index, horizon), seed=counts["episodes started"])
                    counts["episodes started"] += 1
                    result = episode.initial
                    while not result.status.is_final and time.monotonic() < end_s:
                        asked_s = time.monotonic()
                        result = await episode.step("amber")
                        slowest_s = max(slowest_s, time.monotonic() - asked_s)
                        counts["steps"] += 1
                        counts["turns out of order"] += result.turn_index != episode.turn_index
                    counts["episodes that failed"] += result.failure is not None
                    if not result.status.is_final:
                        await episode.end()
                except LongturnError as error:
                    counts[f"failed calls: {error.reason}"] += 1

        async def main() -> None:
            async with EnvClient(EnvClientConfig(address=server.address, connect_budget_s=600.0)) as envs:
                end_s = time.monotonic() + seconds
                await asyncio.gather(*(play(envs, index, end_s) for index in range(sessions)))
                counts["reconnects"] = envs.num_reconnects
            await asyncio.sleep(5.0)  # the server publishes its gauges once a second
            counts["episodes left at the server"] = server.count("server/episode/num_live")
            counts["workers restarted"] = server.count("server/worker/num_restarts")

        asyncio.run(main())
    harmless = {"steps", "episodes started"}
    failures = [f"{number} {name}" for name, number in counts.items() if number and name not in harmless]
    rows: dict[str, object] = {name: f"{number:,}" for name, number in counts.items()}
    told(f"{sessions} sessions for {seconds:g} s", rows | {"slowest step, s": slowest_s}, failures)


if __name__ == "__main__":
    app()
