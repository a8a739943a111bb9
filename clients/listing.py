"""The parts behind `longturn envs`: environments, task files, prepared tasks."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from clients.broken import BrokenGame, tell_and_judge
from clients.catalog import EnvironmentInfo
from clients.config import EnvClientConfig
from clients.environments import Environments, open_environments
from clients.evaluate import PanelChoice, list_entries
from clients.progress import EpisodeProgress, episode_progress
from longturn.errors import CallRefusedError, EpisodeError, LongturnError
from longturn.leaf import first_leaf
from longturn.records import EndCause
from longturn.task_file import TaskEntry, read_tasks, task_line, write_tasks


def show_environments(config: EnvClientConfig, *, as_json: bool) -> None:
    """Print what the server offers."""
    infos = asyncio.run(_environments(config))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(info) for info in infos]))
        return
    table = Table()
    for name in ("name", "version", "data hash", "splits", "turns", "score", "oracle", "progress"):
        table.add_column(name, no_wrap=name == "name", overflow="fold")
    for info in infos:
        table.add_row(
            info.name,
            info.version,
            info.data_hash,
            " ".join(info.splits),
            str(info.max_turns),
            f"{info.score_min:g} to {info.score_max:g}",
            "yes" if info.has_oracle else "no",
            "yes" if info.has_progress else "no",
        )
    console = Console(highlight=False)
    console.print(table)
    for info in infos:
        console.print(f"{info.name}: {info.action_format}", markup=False)


async def _environments(config: EnvClientConfig) -> tuple[EnvironmentInfo, ...]:
    async with open_environments(config) as envs:
        return await envs.list_environments()


def write_entries(config: EnvClientConfig, panels: Sequence[PanelChoice], *, out: Path | None, append: bool) -> None:
    """Write or print the lines of a task file, panel after panel."""
    entries = asyncio.run(_entries(config, panels))
    if out is None:
        for entry in entries:
            typer.echo(task_line(entry))
        return
    earlier = read_tasks(out) if append and out.exists() else ()
    num_written = write_tasks(out, [*earlier, *entries])
    typer.echo(f"{num_written} tasks in {out}", err=True)


async def _entries(config: EnvClientConfig, panels: Sequence[PanelChoice]) -> list[TaskEntry]:
    async with open_environments(config) as envs:
        return [entry for panel in panels for entry in await list_entries(envs, panel)]


def prepare(
    config: EnvClientConfig, entries: Sequence[TaskEntry], *, concurrency: int, max_broken_share: float
) -> None:
    """Start and end an episode of every entry; the server prepares what a start needs and keeps it.

    Goes on where a game breaks; GamesBrokenError at the end if all did, or more than that share.
    """
    with episode_progress("preparing tasks") as progress:
        broken = asyncio.run(_prepare(config, entries, concurrency, progress))
    typer.echo(f"{len(entries) - len(broken)} tasks prepared", err=True)
    tell_and_judge(broken, len(entries), max_broken_share=max_broken_share)


async def _prepare(
    config: EnvClientConfig, entries: Sequence[TaskEntry], concurrency: int, progress: EpisodeProgress
) -> list[BrokenGame]:
    progress.expect(len(entries))
    remaining = iter(entries)
    broken: list[BrokenGame] = []

    async def work(envs: Environments) -> None:
        for entry in remaining:
            try:
                episode = await envs.start(entry.task, seed=entry.seed)
                await episode.end(EndCause.CLIENT_REQUEST)
            except (EpisodeError, CallRefusedError) as error:
                broken.append(BrokenGame(entry=entry, error=error))
            progress.advance()

    failure: LongturnError | None = None
    async with open_environments(config) as envs:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(concurrency, len(entries))):
                    tasks.create_task(work(envs))
        except* LongturnError as errors:
            failure = first_leaf(errors)
    if failure is not None:
        raise failure
    return broken
