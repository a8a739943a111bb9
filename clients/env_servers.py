"""Several env servers as one: starts are spread by load and health, an episode stays at the server that started it.

Invariant: no episode is ever moved or played twice. A server that stops answering is said to be lost, once, with the
number of episodes that wait for it; they go on if it comes back (`longturn serve --state-dir`), else their steps end as
UnreachableError or EpisodeLostError, and new starts go to the other servers meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType

from clients.calls import DEADLINE_REASON
from clients.catalog import EnvironmentInfo, ServerInfo, TaskInfo
from clients.config import EnvClientConfig
from clients.environment import EnvClient, retry_delay_s
from clients.episode import RemoteEpisode
from clients.shared_wait import SharedWait
from longturn.errors import CallRefusedError, EpisodeLostError, LongturnError, UnreachableError
from longturn.records import Task
from longturn.status import StatusBoard

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Time between two questions for a server's load."""
MAX_SILENT_LOOKS = 2
"""A server that misses so many questions in a row is lost."""
_ELSEWHERE = frozenset({"TOO_MANY_EPISODES", "TOO_MANY_REQUESTS", "RATE_LIMITED", "SHUTTING_DOWN", "NO_WORKER"})
"""Refusals of a start that another server may not have."""


class _Server:
    """One of the servers."""

    def __init__(self, config: EnvClientConfig) -> None:
        self.config = config
        self.address = config.address
        self.client: EnvClient | None = None
        """Set once the server has answered, and kept from then on: episodes hold on to it."""
        self.is_up = False
        self.is_lost = asyncio.Event()
        self.failure: LongturnError | None = None
        """Why it is of no use, however long one waits."""
        self.num_live = 0
        """Episodes of all clients, as the server said last."""
        self._num_others = 0
        """Of these, those of other clients."""
        self._num_silent = 0
        self._refused_for = ""
        """Why it did not tell its load when it was last asked."""

    @property
    def share(self) -> float:
        """How full it is, as far as is known."""
        if self.client is None:
            return 1.0
        return (self._num_others + self.client.num_live) / max(self.client.server_info.max_episodes, 1)

    async def look(self, client: EnvClient) -> None:
        """Ask for its load once; say so where it is lost or comes back."""
        try:
            load = await client.load()
        except UnreachableError as error:
            self._num_silent += 1
            if self._num_silent == MAX_SILENT_LOOKS:
                self._lose(client, str(error))
            return
        except LongturnError as error:  # it answers, but not this question: a start will tell whether it is of use
            if error.reason != self._refused_for:
                fields = {"address": self.address, "reason": error.reason, "cause": str(error)}
                logger.warning("env server does not tell its load", extra=fields)
            self._refused_for = error.reason
            return
        self._refused_for = ""
        was_lost, self._num_silent, self.num_live = self.is_lost.is_set(), 0, load.num_live
        self._num_others = max(0, load.num_live - client.num_live)
        if was_lost:
            self.is_lost.clear()
            logger.warning("env server is back", extra={"address": self.address})
        if load.is_serving != self.is_up and not was_lost:
            state = "serves" if load.is_serving else "drains; starts go elsewhere"
            logger.info("env server %s", state, extra={"address": self.address})
        self.is_up = load.is_serving

    def _lose(self, client: EnvClient, cause: str) -> None:
        self.is_up = False
        self.is_lost.set()
        fields = {"address": self.address, "num_episodes": client.num_live, "cause": cause}
        logger.warning("env server lost; its episodes wait for it and starts go elsewhere", extra=fields)


class EnvServers:
    """Connections to several env servers that serve the same environments. Use it as an async context manager."""

    def __init__(self, configs: Sequence[EnvClientConfig], *, board: StatusBoard | None = None) -> None:
        """`configs` are alike but for what belongs to each address; see `clients.server_addresses.per_address`."""
        self._config = config = configs[0]
        self._board = board
        self._servers = [_Server(config) for config in configs]
        self._data_hashes = dict(config.data_hashes)
        self._refused_wait = SharedWait(board, "env_server", budget_s=config.refused_budget_s)
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> EnvServers:
        """Connect; raise UnreachableError if none answers in `connect_budget_s`, ConfigError if one cannot be used."""
        self._tasks = [asyncio.create_task(self._attend(server), name=server.address) for server in self._servers]
        try:
            await self._until_up(self._config.connect_budget_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.attempt_timeout_s):
                    await self._until_all_met()
            for server in self._servers:
                if server.failure is not None:
                    raise server.failure
        except BaseException:
            await self._close()
            raise
        missing = [server.address for server in self._servers if server.client is None]
        if missing:
            logger.warning("env servers do not answer yet", extra={"addresses": ", ".join(missing)})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def server_info(self) -> ServerInfo:
        """Who answers: the first server that does."""
        return next(server.client for server in self._servers if server.client is not None).server_info

    @property
    def num_live_by_address(self) -> dict[str, int]:
        """Episodes of this client at each server."""
        return {server.address: server.client.num_live if server.client else 0 for server in self._servers}

    @property
    def load_by_address(self) -> dict[str, int]:
        """Episodes of all clients at each server that has answered, as of a few seconds ago."""
        return {server.address: server.num_live for server in self._servers if server.client is not None}

    async def list_environments(self) -> tuple[EnvironmentInfo, ...]:
        """The environments of the servers, by name."""
        return await (await self._any()).list_environments()

    async def environment(self, name: str) -> EnvironmentInfo:
        """One environment; raise CallRefusedError naming those that exist if there is none of this name."""
        return await (await self._any()).environment(name)

    async def list_tasks(
        self, environment: str, split: str, *, filters: Mapping[str, str] | None = None, limit: int | None = None
    ) -> tuple[TaskInfo, ...]:
        """Tasks of a split in the servers' order, at most `limit`."""
        return await (await self._any()).list_tasks(environment, split, filters=filters, limit=limit)

    async def start(
        self,
        task: Task,
        *,
        seed: int = 0,
        max_turns: int = 0,
        with_progress: bool = False,
        with_oracle: bool = False,
    ) -> RemoteEpisode:
        """Start an episode at the least loaded server that takes it; it stays there. Errors as in EnvClient."""
        deadline_s = time.monotonic() + self._config.refused_budget_s
        while True:
            outcome = await self._try_each(task, seed, max_turns, with_progress=with_progress, with_oracle=with_oracle)
            if isinstance(outcome, RemoteEpisode):
                return outcome
            delay_s = retry_delay_s(outcome)
            if delay_s is None or time.monotonic() + delay_s > deadline_s:
                raise outcome
            with self._refused_wait.waiting(f"{outcome.reason}: {outcome}"):
                await asyncio.sleep(delay_s)

    async def attach(self, episode_id: str, episode_token: str) -> RemoteEpisode:
        """Take an episode over, whichever of the servers has it."""
        await self._until_up(self._config.outage_budget_s)
        error: EpisodeLostError | None = None
        for server in [server for server in self._servers if server.client is not None and server.is_up]:
            assert server.client is not None
            try:
                return await server.client.attach(episode_id, episode_token)
            except EpisodeLostError as lost:
                error = lost
        raise error or self._unreachable(self._config.outage_budget_s)

    async def _try_each(
        self, task: Task, seed: int, max_turns: int, *, with_progress: bool, with_oracle: bool
    ) -> RemoteEpisode | CallRefusedError:
        """An episode, or the last refusal if every server that answers has one for now."""
        tried: set[str] = set()
        refusal: CallRefusedError | None = None
        while True:
            server = self._choose(tried)
            if server is None and refusal is not None:
                return refusal
            if server is None or server.client is None:
                tried.clear()
                await self._until_up(self._config.outage_budget_s)
                continue
            tried.add(server.address)
            start = server.client.start(
                task,
                seed=seed,
                max_turns=max_turns,
                with_progress=with_progress,
                with_oracle=with_oracle,
                patience_s=0.0,
            )
            try:
                return await _unless_lost(start, server)
            except UnreachableError as error:
                if error.reason == DEADLINE_REASON:
                    raise
                server.is_up = False  # until it answers the next look
                logger.warning("start goes elsewhere", extra={"address": server.address, "cause": str(error)})
            except CallRefusedError as error:
                if error.reason not in _ELSEWHERE:
                    raise
                refusal = error

    def _choose(self, tried: set[str]) -> _Server | None:
        """The least loaded server that is up and not tried yet."""
        open_ = [server for server in self._servers if server.is_up and server.address not in tried]
        return min(open_, key=lambda server: server.share, default=None)

    async def _any(self) -> EnvClient:
        await self._until_up(self._config.outage_budget_s)
        server = self._choose(set())
        if server is None or server.client is None:  # it went down this very moment
            raise self._unreachable(0.0)
        return server.client

    async def _attend(self, server: _Server) -> None:
        """Connect to a server and follow its load; runs until cancelled, or until it proves to be of no use."""
        while server.client is None:
            client = EnvClient(server.config, data_hashes=self._data_hashes)
            try:
                await client.__aenter__()
            except UnreachableError as error:
                logger.warning("env server does not answer", extra={"address": server.address, "cause": str(error)})
                continue
            except LongturnError as error:
                logger.error("env server cannot be used", extra={"address": server.address, "cause": str(error)})
                server.failure = error
                self._notify()
                return
            server.client, server.is_up = client, True
            self._notify()
        while True:
            await server.look(server.client)
            self._notify()
            await asyncio.sleep(LOOK_S)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until_up(self, budget_s: float) -> None:
        """Wait until a server takes starts; raise UnreachableError naming all once the budget is spent."""
        if any(server.is_up for server in self._servers):
            return
        wait = SharedWait(self._board, "env_server", budget_s=budget_s)
        try:
            with wait.waiting(f"none of {self._names()} answers"):
                async with asyncio.timeout(budget_s):
                    while not any(server.is_up for server in self._servers):
                        if all(server.failure is not None for server in self._servers):
                            break
                        await self._changed.wait()
        except TimeoutError:
            raise self._unreachable(budget_s) from None
        failure = self._servers[0].failure
        if failure is not None and all(server.failure is not None for server in self._servers):
            raise failure

    async def _until_all_met(self) -> None:
        while any(server.client is None and server.failure is None for server in self._servers):
            await self._changed.wait()

    def _names(self) -> str:
        return ", ".join(server.address for server in self._servers)

    def _unreachable(self, budget_s: float) -> UnreachableError:
        return UnreachableError(
            f"none of the env servers {self._names()} answered within {budget_s:g} s; start them with `longturn serve`"
            " or change env_server.address"
        )

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            if server.client is not None:
                await server.client.__aexit__(None, None, None)


async def _unless_lost(start: Coroutine[object, object, RemoteEpisode], server: _Server) -> RemoteEpisode:
    """The started episode; UnreachableError as soon as the server is lost, without waiting for it to come back."""
    starting = asyncio.create_task(start)
    lost = asyncio.create_task(server.is_lost.wait())
    try:
        await asyncio.wait([starting, lost], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            raise UnreachableError(f"env server at {server.address} is lost")
        return starting.result()
    finally:
        for task in (starting, lost):
            task.cancel()
        await asyncio.gather(starting, lost, return_exceptions=True)
