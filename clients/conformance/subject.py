"""What a check is given: a server, a client, and a few tasks of the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from clients.catalog import EnvironmentInfo
from clients.conformance.server import CheckedServer
from clients.environment import EnvClient
from longturn.records import KnobValue, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """How long and on what the suite plays."""

    seed: int = 0
    """Fixes seeds and random actions of all episodes."""
    knobs: Mapping[str, KnobValue] = field(default_factory=dict[str, KnobValue])
    """Knobs of every episode."""
    filters: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the tasks played must have, as in `longturn envs tasks`."""
    tasks_per_split: int = 2
    """The first so many tasks of every split are played."""
    num_neighbours: int = 64
    """Episodes that run beside the one that must not be disturbed."""
    num_random_episodes: int = 24
    """Episodes of the random policy."""
    num_resets: int = 2000
    """Resets over which the worker must not grow."""
    seconds: float = 60.0
    """Time after which the resets end, however many there were."""

    def flags(self) -> dict[str, int | float]:
        """Values by the options of `longturn envs check` that set them."""
        return {
            "--seed": self.seed,
            "--tasks-per-split": self.tasks_per_split,
            "--neighbours": self.num_neighbours,
            "--random-episodes": self.num_random_episodes,
            "--resets": self.num_resets,
            "--seconds": self.seconds,
        }


class CheckFailedError(Exception):
    """The environment breaks a promise; the message says which one, where, and what came instead."""


class CheckSkippedError(Exception):
    """The promise does not apply to this environment; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An environment under test."""

    server: CheckedServer
    envs: EnvClient
    info: EnvironmentInfo
    tasks: Sequence[Task]
    """The first tasks of every split."""
    options: SuiteOptions

    def seed(self, index: int) -> int:
        """The seed of the episode of this number."""
        return 1000 * self.options.seed + index

    def at(self, server: CheckedServer, envs: EnvClient) -> Subject:
        """The same environment at another server."""
        return replace(self, server=server, envs=envs)
