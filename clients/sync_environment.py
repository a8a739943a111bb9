"""The blocking twin of EnvClient, for scripts and notebooks.

Invariant: all network state belongs to one event loop in one thread; callers of any thread hand coroutines to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TypeVar

from clients.catalog import EnvironmentInfo, ServerInfo, TaskInfo
from clients.config import EnvClientConfig
from clients.environment import EnvClient
from clients.episode import RemoteEpisode
from longturn.records import EndCause, StepResult, Task

T = TypeVar("T")


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
        return self._client.run(self._episode.step(action))

    def end(self, cause: EndCause = EndCause.CLIENT_REQUEST) -> StepResult:
        """End the episode; see `RemoteEpisode.end`."""
        return self._client.run(self._episode.end(cause))


class SyncEnvClient:
    """A blocking connection to one env server. Use it as a context manager."""

    def __init__(self, config: EnvClientConfig) -> None:
        self._client = EnvClient(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="env-client", daemon=True)

    def __enter__(self) -> SyncEnvClient:
        """Connect; errors as in EnvClient."""
        self._thread.start()
        try:
            self.run(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.run(self._client.__aexit__(kind, error, traceback))
        finally:
            self._stop()

    @property
    def server_info(self) -> ServerInfo:
        """Who answers."""
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
        start = self._client.start(
            task, seed=seed, max_turns=max_turns, with_progress=with_progress, with_oracle=with_oracle
        )
        return SyncEpisode(self, self.run(start))

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
