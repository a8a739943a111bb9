"""An environment as an MCP server: any MCP agent lists tasks, starts episodes and acts through tools.

Invariant: an agent names its episodes by short handles; ids and tokens stay here. What the agent can mend comes back as
a tool error with the server's own words. Needs the extra `mcp`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any, ParamSpec, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from clients.catalog import EnvironmentInfo
from clients.config import EnvClientConfig
from clients.environments import Environments, open_environments
from clients.episode import RemoteEpisode
from longturn.errors import EpisodeError, LongturnError
from longturn.records import EndCause, StepResult, Task

MAX_LISTED_TASKS = 1000
MAX_EPISODES = 64

P = ParamSpec("P")
T = TypeVar("T")

Handle = Annotated[str, Field(description="The episode, as start_episode named it.")]


class Listed(BaseModel):
    """One task."""

    task_id: str
    kind: str


class Seen(BaseModel):
    """What the agent gets to see of a state."""

    episode: str
    observation: str
    status: str
    """running, terminated, truncated, aborted or failed."""
    turn_index: int
    max_turns: int
    reward: float
    score: float
    success: bool
    action_valid: bool
    admissible_actions: list[str]
    failure: str
    """Why the environment broke; empty unless status is failed."""


class EpisodeTools:
    """The tools of one agent over one environment."""

    def __init__(self, envs: Environments, info: EnvironmentInfo) -> None:
        self._envs = envs
        self._info = info
        self._episodes: dict[str, RemoteEpisode] = {}
        self._handles = itertools.count(1)

    async def list_tasks(
        self,
        split: Annotated[str, Field(description="Name of the split.")] = "train",
        filters: Annotated[dict[str, str] | None, Field(description="Attributes the tasks must have.")] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LISTED_TASKS, description="Most tasks.")] = 20,
    ) -> list[Listed]:
        """List tasks that start_episode takes."""
        infos = await self._envs.list_tasks(self._info.name, split, filters=filters or {}, limit=limit)
        return [Listed(task_id=info.task.task_id, kind=info.kind) for info in infos]

    async def start_episode(
        self,
        task_id: Annotated[str, Field(description="A task of list_tasks.")],
        seed: Annotated[int, Field(ge=0, description="Fixes what the task leaves to chance.")] = 0,
        knobs: Annotated[
            dict[str, bool | int | float | str] | None, Field(description="Settings of the environment.")
        ] = None,
        max_turns: Annotated[int, Field(ge=0, description="Turn limit; 0: the environment's.")] = 0,
    ) -> Seen:
        """Start an episode and show its first observation."""
        if len(self._episodes) >= MAX_EPISODES:
            raise ToolError(f"{MAX_EPISODES} episodes run already; end one with end_episode")
        task = Task(environment=self._info.name, task_id=task_id, knobs=knobs or {})
        episode = await self._envs.start(task, seed=seed, max_turns=max_turns)
        handle = str(next(self._handles))
        self._episodes[handle] = episode
        return self._show(handle, episode, episode.initial)

    async def step(
        self, episode: Handle, action: Annotated[str, Field(description="Text for the environment.")]
    ) -> Seen:
        """Apply one action to an episode and show what it led to."""
        playing = self._find(episode)
        try:
            result = await playing.step(action)
        except EpisodeError:
            self._episodes.pop(episode, None)
            raise
        except asyncio.CancelledError:  # whether the action was applied is not known: this episode cannot go on
            self._episodes.pop(episode, None)
            playing.abandon(EndCause.CLIENT_REQUEST)
            raise
        return self._show(episode, playing, result)

    async def end_episode(self, episode: Handle) -> Seen:
        """End an episode that is not over, and free its place."""
        playing = self._find(episode)
        return self._show(episode, playing, await playing.end())

    def _find(self, handle: str) -> RemoteEpisode:
        try:
            return self._episodes[handle]
        except KeyError:
            running = ", ".join(self._episodes) or "none"
            raise ToolError(f"no episode {handle!r} runs; running: {running}") from None

    def _show(self, handle: str, episode: RemoteEpisode, result: StepResult) -> Seen:
        if result.status.is_final:
            self._episodes.pop(handle, None)
        return Seen(
            episode=handle,
            observation=result.observation,
            status=result.status.name.lower(),
            turn_index=result.turn_index,
            max_turns=episode.max_turns,
            reward=result.reward,
            score=result.score,
            success=result.success,
            action_valid=result.action_valid,
            admissible_actions=list(result.admissible_actions),
            failure="" if result.failure is None else f"{result.failure.reason}: {result.failure.message}",
        )


def make_server(envs: Environments, info: EnvironmentInfo) -> MCPServer[Any]:
    """The MCP server over one environment."""
    tools = EpisodeTools(envs, info)
    server = MCPServer(
        f"longturn-{info.name}",
        instructions=f"{info.description} Action: {info.action_format} An episode takes at most {info.max_turns} turns:"
        " list_tasks, start_episode, then step until status is not running.",
        version=version("longturn"),
        log_level="WARNING",
    )
    server.add_tool(_telling(tools.list_tasks))
    server.add_tool(_telling(tools.start_episode))
    server.add_tool(_telling(tools.step))
    server.add_tool(_telling(tools.end_episode))
    return server


def serve_stdio(config: EnvClientConfig, environment: str) -> None:
    """Serve one agent over stdin and stdout until stdin ends."""
    asyncio.run(_serve(config, environment))


async def _serve(config: EnvClientConfig, environment: str) -> None:
    async with open_environments(config) as envs:
        info = await envs.environment(environment)
        await make_server(envs, info).run_stdio_async()


def _telling(tool: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a tool raise LongturnError: the agent reads its message and may mend its call."""

    @wraps(tool)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await tool(*args, **kwargs)
        except LongturnError as error:
            raise ToolError(f"{error.reason}: {error}") from error

    return call
