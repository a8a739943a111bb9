"""Records demonstrations: plays tasks with a text policy and writes the trajectories (`longturn.trajectory_file`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from clients.actor import Actor
from clients.agents import TextAgent
from clients.config import EnvClientConfig
from clients.environments import open_environments
from clients.evaluation import Evaluation, summarise
from clients.panel import Outcome, PanelOptions, Player, play_panel
from clients.policies.base import TextPolicy
from longturn.metrics import Metrics
from longturn.records import Trajectory
from longturn.task_file import TaskEntry
from longturn.trajectory_file import TrajectoryWriter


def text_player(policy: TextPolicy) -> Player:
    """A panel's player for a policy without tokens."""

    def make_agent(seed: int, episode_key: str) -> TextAgent:
        return TextAgent(policy.begin(seed))

    return Player(make_agent=make_agent, sampling=lambda seed: None, needs_oracle=policy.needs_oracle)


async def record(
    path: Path,
    entries: Sequence[TaskEntry],
    policy: TextPolicy,
    *,
    num_episodes: int,
    env_server: EnvClientConfig,
    options: PanelOptions,
    on_outcome: Callable[[Outcome], None],
) -> Evaluation:
    """Play `num_episodes` episodes, going through the entries as often as needed, and write them in their order.

    Raises the first failure if an entry had no episode that ended properly; the file then stays as it was.
    """
    repeated = list(itertools.islice(itertools.cycle(entries), num_episodes))
    async with open_environments(env_server) as envs:
        actor = Actor(envs, metrics=Metrics())
        outcomes = await play_panel(repeated, text_player(policy), actor, options, on_outcome=on_outcome)
    with TrajectoryWriter(path) as writer:
        for outcome in outcomes:
            writer.write(_trajectory(outcome))
    return summarise(outcomes)


def _trajectory(outcome: Outcome) -> Trajectory:
    if isinstance(outcome.result, Trajectory):
        return outcome.result
    raise outcome.result
