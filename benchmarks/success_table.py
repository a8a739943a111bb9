"""How often the oracle and a random policy win: every environment and split, as a Markdown table.

Both policies play the same episodes: the first tasks of each list, in the server's order, with one seed. The random
policy draws from the admissible actions where the environment lists them; elsewhere it makes up an action from words
that it saw.

Run: python benchmarks/success_table.py --rows ROWS.jsonl [--output TABLE.md] [--only NAME]
What stands in ROWS already is not played again, so a stopped run goes on. ALFWORLD_DATA adds the published games.
"""

import asyncio
import json
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from clients.catalog import EnvironmentInfo
from clients.config import EnvClientConfig, EvalConfig
from clients.conformance.server import checked_server
from clients.environments import open_environments
from clients.evaluate import PanelChoice, PolicyChoice, run_evaluation
from clients.evaluation import Evaluation
from clients.panel import PanelOptions
from longturn.records import KnobValue
from longturn.task_file import TaskEntry

SEED = 0
POLICIES = ("oracle", "random")
_LISTING = "admissible_actions"

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Tasks of an environment, as many in each split; all where a split has fewer."""

    environment: str
    episodes: int = 100
    filters: Mapping[str, str] = field(default_factory=dict[str, str])
    needs: str = ""
    """Variable that names the data; without it the panel is left out."""

    @property
    def label(self) -> str:
        """The environment, and what its tasks have in common."""
        shown = ", ".join(f"{name} {value}" for name, value in self.filters.items())
        return f"{self.environment}, {shown}" if shown else self.environment


COOKING = {"family": "cooking", "recipe": "3", "take": "3", "go": "6", "drop": "1"}
PANELS = (
    Panel(environment="textworld", filters={"family": "coin_collector", "level": "20"}),
    Panel(environment="textworld", filters={"family": "coin_collector", "level": "116"}, episodes=24),
    Panel(
        environment="textworld",
        filters=COOKING,
        episodes=32,
    ),
    Panel(environment="textworld", filters={"family": "treasure_hunter", "level": "10"}, episodes=24),
    Panel(environment="textworld", filters={"family": "simple", "goal": "brief"}, episodes=24),
    Panel(environment="textworld", filters={"family": "quest", "length": "30", "rooms": "10"}, episodes=24),
    Panel(environment="alfworld", filters={"source": "generated"}, episodes=48),
    Panel(environment="alfworld", filters={"source": "file"}, episodes=48, needs="ALFWORLD_DATA"),
    Panel(environment="scienceworld", episodes=30),
    Panel(environment="textworld_express", episodes=104),
    Panel(environment="sokoban"),
    Panel(environment="frozen_lake"),
    Panel(environment="bandit"),
    Panel(environment="sudoku"),
    Panel(environment="game_2048"),
    Panel(environment="rubiks_2x2"),
    Panel(environment="countdown"),
    Panel(environment="math", episodes=110),
    Panel(environment="webshop"),
    Panel(environment="search"),
    Panel(environment="code"),
)


def main(
    rows: Annotated[Path, typer.Option(help="File that keeps what was played, an object a line.")],
    output: Annotated[Path | None, typer.Option(help="Where to write the table.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Name of an environment; may be given several times.")] = None,
) -> None:
    """Play what is not played yet, then print the table."""
    unknown = set(only or ()) - {panel.environment for panel in PANELS}
    if unknown:
        raise typer.BadParameter(f"there is no panel of {', '.join(sorted(unknown))}")
    for panel in PANELS:
        if (not only or panel.environment in only) and (not panel.needs or panel.needs in os.environ):
            asyncio.run(keep(panel, rows))
    table = "\n".join(render(read(rows)))
    print(table)
    if output is not None:
        output.write_text(table + "\n", encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows that were played."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


async def keep(panel: Panel, rows: Path) -> None:
    """Play a panel and append its rows."""
    known = {(row["panel"], row["split"], row["policy"]) for row in read(rows)}
    async for row in play(panel, known):
        Console(stderr=True).print(f"{row['panel']} {row['split']} {row['policy']}: {row['success']}", markup=False)
        with rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


async def play(panel: Panel, known: AbstractSet[Key]) -> AsyncIterator[dict[str, Any]]:
    """The rows of a panel that are not known yet."""
    with tempfile.TemporaryDirectory() as folder, checked_server(panel.environment, Path(folder)) as server:
        config = EvalConfig(env_server=EnvClientConfig(address=server.address))
        async with open_environments(config.env_server) as envs:
            info = await envs.environment(panel.environment)
            for split in info.splits:
                missing = [policy for policy in POLICIES if (panel.label, split, policy) not in known]
                tasks = await envs.list_tasks(panel.environment, split, filters=panel.filters, limit=panel.episodes)
                entries = [TaskEntry(task=task.task, seed=SEED, kind=task.kind) for task in tasks]
                for policy in missing:
                    evaluation = await played(config, info, policy, entries)
                    yield {"panel": panel.label, "split": split, "policy": policy, **evaluation.to_json()}


async def played(
    config: EvalConfig, info: EnvironmentInfo, policy: str, entries: Sequence[TaskEntry]
) -> Evaluation:  # fmt: skip
    """One policy on some tasks, each once."""
    knobs: dict[str, KnobValue] = {_LISTING: True} if policy == "random" and _LISTING in info.knobs else {}
    choice = PolicyChoice(name=policy, settings={}, temperature=1.0, max_new_tokens=1, max_episode_tokens=0)
    evaluation, _ = await run_evaluation(
        config,
        choice,
        PanelChoice(tasks=entries, knobs=knobs),
        PanelOptions(seed=SEED, concurrency=16),
        on_start=lambda _: None,
        on_outcome=lambda _: None,
    )
    return evaluation


def render(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table, a line per panel and split."""
    by_key = {(row["panel"], row["split"], row["policy"]): row for row in rows}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        f"{date.today().isoformat()}, {machine}, seed {SEED}: `python benchmarks/success_table.py`.",
        "",
        "| environment | split | episodes | oracle wins | its turns | random wins (95 %) | its score | its turns |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label in dict.fromkeys(panel.label for panel in PANELS):
        for split in dict.fromkeys(row["split"] for row in rows if row["panel"] == label):
            oracle, random = (by_key.get((label, split, policy)) for policy in POLICIES)
            if oracle is not None and random is not None:
                lines.append(line(label, split, oracle, random))
    return lines


def line(label: str, split: str, oracle: Mapping[str, Any], random: Mapping[str, Any]) -> str:
    """A line of the table. Episodes that broke, or whose oracle fell silent, are counted apart."""
    low, high = random["ci95"]
    wins = share(oracle) + "".join(f", {count} {reason}" for reason, count in oracle["failed"].items())
    chance = f"{share(random)} ({low:.3f}-{high:.3f})"
    cells = [label, split, number(random["episodes"], 0), wins, number(oracle["turns_mean"], 1), chance]
    return f"| {' | '.join([*cells, number(random['score_mean'], 3), number(random['turns_mean'], 1)])} |"


def share(row: Mapping[str, Any]) -> str:
    """Wins of episodes."""
    return f"{round((row['success'] or 0.0) * row['episodes'])}/{row['episodes']}"


def number(value: float | None, digits: int) -> str:
    """A mean, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    typer.run(main)
