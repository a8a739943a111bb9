"""Demonstrations: plays of tasks by a text policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from clients.actor import Actor
from clients.agents import TextAgent
from clients.config import EnvClientConfig
from clients.environments import open_environments
from clients.knobs import with_knobs
from clients.panel import Outcome, PanelOptions, Player, play_panel
from clients.policies.base import TextPolicy
from longturn.metrics import Metrics
from longturn.records import KnobValue
from longturn.task_file import TaskEntry


def text_player(policy: TextPolicy) -> Player:
    """A panel's player for a policy without tokens."""

    def make_agent(seed: int, episode_key: str) -> TextAgent:
        return TextAgent(policy.begin(seed))

    return Player(make_agent=make_agent, sampling=lambda seed: None, needs_oracle=policy.needs_oracle)


async def play_demonstrations(
    entries: Sequence[TaskEntry],
    policy: TextPolicy,
    *,
    num_episodes: int,
    env_server: EnvClientConfig,
    options: PanelOptions,
    knobs: Mapping[str, KnobValue],
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Play `num_episodes` episodes, going through the entries as often as needed; their outcomes in that order."""
    repeated = list(itertools.islice(itertools.cycle(entries), num_episodes))
    async with open_environments(env_server) as envs:
        actor = Actor(envs, metrics=Metrics())
        played = await with_knobs(envs, repeated, knobs)
        return await play_panel(played, text_player(policy), actor, options, on_outcome=on_outcome)
