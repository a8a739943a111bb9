"""The blocking twin of EnvClient, for scripts and notebooks.

Invariant: all network state belongs to one event loop in one thread; callers of any thread hand coroutines to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TypeVar

from clients.catalog import EnvironmentInfo, ServerInfo, TaskInfo
from clients.config import EnvClientConfig
from clients.environments import Environments, open_environments
from clients.episode import RemoteEpisode
from longturn.records import EndCause, StepResult, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What a start asks for beside task and seed; see `EnvClient.start`."""

    max_turns: int = 0
    with_progress: bool = False
    with_oracle: bool = False


class SyncEpisode:
    """One episode; see `RemoteEpisode`."""

    def __init__(self, client: SyncEnvClient, episode: RemoteEpisode) -> None:
        self._client = client
        self._episode = episode

    @property
    def initial(self) -> StepResult:
        """What the start returned."""
        return self._episode.initial

    @property
    def last(self) -> StepResult:
        """The newest result."""
        return self._episode.last

    @property
    def episode_id(self) -> str:
        """Names the episode in logs."""
        return self._episode.episode_id

    def step(self, action: str) -> StepResult:
        """Apply one action; see `RemoteEpisode.step`."""
        return self._client.run(self.step_later(action))

    def step_later(self, action: str) -> Coroutine[object, object, StepResult]:
        """The step as a coroutine for `SyncEnvClient.run`."""
        return self._episode.step(action)

    def fork(self, at_turn: int | None = None) -> SyncEpisode:
        """Start an independent copy; see `RemoteEpisode.fork`."""
        return SyncEpisode(self._client, self._client.run(self._episode.fork(at_turn)))

    def end(self, cause: EndCause = EndCause.CLIENT_REQUEST) -> StepResult:
        """End the episode; see `RemoteEpisode.end`."""
        return self._client.run(self._episode.end(cause))


class SyncEnvClient:
    """A blocking connection to one env server or several. Use it as a context manager."""

    def __init__(self, config: EnvClientConfig) -> None:
        self._opening = open_environments(config)
        self._client: Environments
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="env-client", daemon=True)

    def __enter__(self) -> SyncEnvClient:
        """Connect; errors as in EnvClient."""
        self._thread.start()
        try:
            self._client = self.run(_enter(self._opening))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.run(_leave(self._opening))
        finally:
            self._stop()

    @property
    def server_info(self) -> ServerInfo:
        """Who answers; of several servers, the first that does."""
        return self._client.server_info

    def list_environments(self) -> tuple[EnvironmentInfo, ...]:
        """The environments of the server, by name."""
        return self.run(self._client.list_environments())

    def list_tasks(
        self, environment: str, split: str, *, filters: Mapping[str, str] | None = None, limit: int | None = None
    ) -> tuple[TaskInfo, ...]:
        """Tasks of a split in the server's order, at most `limit`."""
        return self.run(self._client.list_tasks(environment, split, filters=filters, limit=limit))

    def start(
        self,
        task: Task,
        *,
        seed: int = 0,
        max_turns: int = 0,
        with_progress: bool = False,
        with_oracle: bool = False,
    ) -> SyncEpisode:
        """Start an episode; see `EnvClient.start`."""
        options = StartOptions(max_turns=max_turns, with_progress=with_progress, with_oracle=with_oracle)
        return self.start_with(task, seed=seed, options=options)

    def start_with(self, task: Task, *, seed: int, options: StartOptions) -> SyncEpisode:
        """The same, what is asked for in one record."""
        return self.start_all([(task, seed)], options=options)[0]

    def start_all(self, starts: Sequence[tuple[Task, int]], *, options: StartOptions) -> list[SyncEpisode]:
        """Start several episodes at once, each from a task and a seed. If one fails, those that started are ended."""
        wanted = [self._client.start(task, seed=seed, **asdict(options)) for task, seed in starts]
        return [SyncEpisode(self, episode) for episode in self.run(_start_all(wanted))]

    def step_all(self, episodes: Sequence[SyncEpisode], actions: Sequence[str]) -> list[StepResult]:
        """Step several episodes at once. If one fails its error is raised once all have been answered."""
        steps = [episode.step_later(action) for episode, action in zip(episodes, actions, strict=True)]
        return self.run(_all(steps))

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run a coroutine in the client's loop and wait for it; every call inside has its own deadline."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _enter(opening: AbstractAsyncContextManager[Environments]) -> Environments:
    return await opening.__aenter__()


async def _leave(opening: AbstractAsyncContextManager[Environments]) -> None:
    await opening.__aexit__(None, None, None)


async def _all(work: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """All results, or the first error once everything is done."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    return [_value(outcome) for outcome in outcomes]


def _value(outcome: T | BaseException) -> T:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _start_all(starts: Sequence[Coroutine[object, object, RemoteEpisode]]) -> list[RemoteEpisode]:
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    started = [outcome for outcome in outcomes if isinstance(outcome, RemoteEpisode)]
    if len(started) < len(outcomes):
        for episode in started:
            episode.abandon(EndCause.CLIENT_REQUEST)
    return [_value(outcome) for outcome in outcomes]
