"""What whoever plays needs of env servers, be it one or several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from clients.catalog import EnvironmentInfo, ServerInfo, TaskInfo
from clients.config import EnvClientConfig
from clients.env_servers import EnvServers
from clients.environment import EnvClient
from clients.episode import RemoteEpisode
from clients.server_addresses import per_address
from longturn.records import Task
from longturn.status import StatusBoard


class Environments(Protocol):
    """What whoever plays needs, over one server or several; see EnvClient."""

    @property
    def server_info(self) -> ServerInfo:
        """Who answers."""
        ...

    async def list_environments(self) -> tuple[EnvironmentInfo, ...]:
        """The environments, by name."""
        ...

    async def environment(self, name: str) -> EnvironmentInfo:
        """One environment."""
        ...

    async def list_tasks(
        self, environment: str, split: str, *, filters: Mapping[str, str] | None = None, limit: int | None = None
    ) -> tuple[TaskInfo, ...]:
        """Tasks of a split, in the server's order."""
        ...

    async def start(
        self,
        task: Task,
        *,
        seed: int = 0,
        max_turns: int = 0,
        with_progress: bool = False,
        with_oracle: bool = False,
    ) -> RemoteEpisode:
        """Start an episode."""
        ...

    async def attach(self, episode_id: str, episode_token: str) -> RemoteEpisode:
        """Take an episode over."""
        ...


@asynccontextmanager
async def open_environments(
    config: EnvClientConfig, *, board: StatusBoard | None = None
) -> AsyncIterator[EnvClient | EnvServers]:
    """The server, or servers, of `env_server.address`; errors as in EnvClient."""
    configs = await per_address(config)
    if len(configs) == 1:
        async with EnvClient(configs[0], board=board) as client:
            yield client
    else:
        async with EnvServers(configs, board=board) as servers:
            yield servers
