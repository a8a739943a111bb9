"""The parts behind `longturn eval`: a panel, a policy, and what they give."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from clients.actor import Actor
from clients.agents import TokenAgent
from clients.calls import Backoff, Peer, until_answered
from clients.config import EvalConfig
from clients.environments import Environments, open_environments
from clients.evaluation import Evaluation, summarise
from clients.knobs import checked_knobs, with_knobs
from clients.panel import Outcome, PanelOptions, Player, play_panel
from clients.policies.engines import Engine, EngineRegistry
from clients.policies.selection import make_text_policy
from clients.policies.sglang import SglangPolicy
from clients.recording import text_player
from clients.renderer import load_renderer
from longturn.disk import write_json
from longturn.errors import ConfigError, UnreachableError
from longturn.metrics import Metrics
from longturn.records import KnobValue, SamplingParams, Trajectory
from longturn.task_file import TaskEntry
from longturn.trajectory_file import TrajectoryWriter

_REACH_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """Who plays: a text policy by name, or engines by address."""

    name: str
    """`random`, `oracle`, `scripted:FILE`, a demonstrator, or http:// addresses separated by commas."""
    settings: Mapping[str, KnobValue]
    temperature: float
    max_new_tokens: int
    max_episode_tokens: int
    api_key: str = ""

    @property
    def engine_urls(self) -> list[str]:
        """Addresses of the engines; empty for a text policy."""
        if not self.name.startswith(("http://", "https://")):
            return []
        return [url.strip().rstrip("/") for url in self.name.split(",")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelChoice:
    """What is played: a task file, or tasks that the server lists."""

    tasks: Sequence[TaskEntry] = ()
    environment: str = ""
    split: str = ""
    filters: Mapping[str, str] | None = None
    skip: int = 0
    limit: int | None = None
    task_seed: int = 0
    """Seed of the episodes of listed tasks; a task file has its own."""
    knobs: Mapping[str, KnobValue] = field(default_factory=dict[str, KnobValue])
    """Knobs of every episode, before those of a task."""


async def list_entries(envs: Environments, panel: PanelChoice) -> list[TaskEntry]:
    """The panel's entries in order, with its knobs; raise ConfigError if there are none, or a knob is not known."""
    if panel.environment and panel.knobs:
        # Before thousands of tasks are listed.
        checked_knobs(await envs.environment(panel.environment), panel.knobs)
    return await with_knobs(envs, await _entries(envs, panel), panel.knobs)


async def _entries(envs: Environments, panel: PanelChoice) -> list[TaskEntry]:
    if panel.tasks:
        entries = list(panel.tasks)[panel.skip :]
        return entries if panel.limit is None else entries[: panel.limit]
    limit = None if panel.limit is None else panel.skip + panel.limit
    infos = await envs.list_tasks(panel.environment, panel.split, filters=panel.filters, limit=limit)
    if len(infos) <= panel.skip or (limit is not None and len(infos) < limit):
        raise ConfigError(
            f"{panel.environment}/{panel.split} with filters {dict(panel.filters or {})} has {len(infos)} tasks, "
            f"{limit or panel.skip + 1} are needed; lower --limit or --skip, or change --filter"
        )
    return [TaskEntry(task=info.task, seed=panel.task_seed, kind=info.kind) for info in infos[panel.skip :]]


async def run_evaluation(
    config: EvalConfig,
    choice: PolicyChoice,
    panel: PanelChoice,
    options: PanelOptions,
    *,
    on_start: Callable[[int], None],
    on_outcome: Callable[[Outcome], None],
) -> tuple[Evaluation, list[Outcome]]:
    """Play the panel once; `on_start` hears its size before the first episode."""
    metrics = Metrics()
    async with open_environments(config.env_server) as envs, _player(config, choice, metrics) as player:
        entries = await list_entries(envs, panel)
        on_start(len(entries))
        actor = Actor(envs, metrics=metrics)
        outcomes = await play_panel(entries, player, actor, options, on_outcome=on_outcome)
    return summarise(outcomes), outcomes


@contextlib.asynccontextmanager
async def _player(config: EvalConfig, choice: PolicyChoice, metrics: Metrics) -> AsyncIterator[Player]:
    if not choice.engine_urls:
        yield text_player(make_text_policy(choice.name, choice.settings))
        return
    renderer = load_renderer(config.renderer)
    engines = EngineRegistry([Engine(url=url, api_key=choice.api_key) for url in choice.engine_urls])
    policy = SglangPolicy(
        config.engine,
        engines=engines,
        stop_token_ids=renderer.stop_token_ids,
        stop_texts=renderer.stop_texts,
        metrics=metrics,
    )

    def sampling(seed: int) -> SamplingParams:
        return SamplingParams(temperature=choice.temperature, max_new_tokens=choice.max_new_tokens, seed=seed)

    def make_agent(seed: int, episode_key: str) -> TokenAgent:
        return TokenAgent(
            policy,
            renderer,
            sampling(seed),
            episode_key=episode_key,
            max_episode_tokens=choice.max_episode_tokens,
            metrics=metrics,
        )

    for url in choice.engine_urls:
        peer = Peer(name="engine", address=url, setting="--policy", command="longturn engine")
        # Each turn would be tried for engine.turn_budget_s before its episode counted as broken.
        await until_answered(
            functools.partial(_reach, url), peer=peer, budget_s=config.env_server.connect_budget_s, backoff=Backoff()
        )
    async with policy:
        yield Player(make_agent=make_agent, sampling=sampling, tokenizer_hash=renderer.tokenizer_hash)


async def _reach(url: str) -> None:
    """UnreachableError unless something listens there; whether it is an engine, its first answer tells."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_REACH_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError) as error:
        raise UnreachableError(str(error) or type(error).__name__) from error
    writer.close()
    await writer.wait_closed()


def write_results(path: Path, evaluation: Evaluation, outcomes: Sequence[Outcome], facts: Mapping[str, object]) -> None:
    """Write totals and one line per episode, in the panel's order, so that two evaluations can be paired."""
    document = {
        "written_at_s": time.time(),
        **facts,
        **evaluation.to_json(),
        "panel": [_row(outcome) for outcome in outcomes],
    }
    write_json(path, document)


def write_trajectories(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the trajectories of a panel."""
    with TrajectoryWriter(path) as writer:
        for outcome in outcomes:
            if isinstance(outcome.result, Trajectory):
                writer.write(outcome.result)


def _row(outcome: Outcome) -> dict[str, object]:
    entry = outcome.entry
    row: dict[str, object] = {"task_id": entry.task.task_id, "seed": entry.seed, "kind": entry.kind}
    if isinstance(outcome.result, Trajectory):
        return {**row, **_result(outcome.result)}
    return {**row, "failure": outcome.result.reason}


def _result(trajectory: Trajectory) -> dict[str, object]:
    return {
        "success": trajectory.success,
        "score": trajectory.score,
        "episode_return": trajectory.episode_return,
        "turns": len(trajectory.turns),
        "status": trajectory.status.name,
        "end_cause": trajectory.end_cause.name if trajectory.end_cause else None,
    }
