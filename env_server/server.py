"""The environment server: workers, episodes and the gRPC server that shows them.

Invariant: nothing is served before the workers are ready, and nothing is left running after `serving` ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc

from env_server.access import Access
from env_server.admission import Admission, Limits
from env_server.background import Background
from env_server.bearer_tokens import BearerTokens
from env_server.calls import Calls
from env_server.catalog import Catalog
from env_server.config import EnvServerConfig
from env_server.durability import Durability
from env_server.episode_table import EpisodeTable
from env_server.grpc_port import Health, bind, register
from env_server.guard import Guard
from env_server.listing import Listing
from env_server.pool import WorkerPool
from env_server.pools import make_pool
from env_server.preparers import Preparers
from env_server.quarantine import Quarantine
from env_server.reaper import Reaper, Times
from env_server.rebuilder import Rebuilder
from env_server.registry import find, served_by_default
from env_server.restoring import Restorer
from env_server.server_info import server_info
from env_server.service import EnvironmentService
from env_server.starter import Starter
from env_server.state_log import StateLog
from env_server.tokens import TokenMint
from longturn.errors import ConfigError
from longturn.metrics import Metrics
from longturn.nearest import nearest_hint
from longturn.status import StatusBoard

logger = logging.getLogger(__name__)

COUNTERS = (
    *("server/episode/num_started", "server/episode/num_forked", "server/episode/num_reaped"),
    *("server/episode/num_replays", "server/episode/num_rebuilt", "server/episode/num_hibernated"),
    *("server/worker/num_restarts", "server/worker/num_timeouts", "server/worker/num_recycled"),
)
"""Shown as 0 before the first one: a rate over a counter that is not there yet is no rate."""


class EnvServer:
    """A running server."""

    def __init__(
        self,
        *,
        address: str,
        pool: WorkerPool,
        table: EpisodeTable,
        grpc_server: grpc.aio.Server,
        service: EnvironmentService,
        health_servicer: Health,
        board: StatusBoard,
    ) -> None:
        self.address = address
        self.pool = pool
        self.table = table
        self.service = service
        self._grpc_server = grpc_server
        self._health, self._board = health_servicer, board

    async def drain(self, timeout_s: float) -> None:
        """Refuse new work, let what is in flight finish within the time, and stop serving."""
        self._board.set_phase("draining")
        await self._health.enter_graceful_shutdown()
        try:
            async with asyncio.timeout(timeout_s):
                await self.table.admission.drain()
        except TimeoutError:
            logger.warning("calls still in flight after env_server.drain_timeout_s are cut off")
        self.service.close_streams()
        await self._grpc_server.stop(grace=0.5)


@asynccontextmanager
async def serving(
    config: EnvServerConfig,
    *,
    metrics: Metrics,
    board: StatusBoard,
    tracers: Sequence[grpc.aio.ServerInterceptor] = (),
) -> AsyncIterator[EnvServer]:
    """Run a server while the block runs; raise ConfigError if it cannot start. `tracers` see the calls let in."""
    names = served_names(config)
    access = Access(BearerTokens(file=config.token_file, variable=config.token_variable))
    grpc_server, address = bind(config, access, tracers)
    root = Path(tempfile.mkdtemp(prefix="longturn-serve-"))
    with Guard(root) as guard, _state_log(config) as log:
        async with asyncio.TaskGroup() as group:
            background = Background(group)
            pools = [
                make_pool(
                    config,
                    names,
                    root,
                    guard,
                    is_preparer=is_preparer,
                    metrics=metrics,
                    spawn_task=background.spawn,
                )
                for is_preparer in (False, True)
            ]
            try:
                with board.waiting("workers", "to become ready", budget_s=config.worker_ready_timeout_s):
                    described, _ = await asyncio.gather(*(pool.start() for pool in pools))
                parts = _Parts(config, described, pools, log, access, metrics=metrics, background=background)
                for name in COUNTERS:
                    metrics.count(name, 0)
                server = await _start(parts, grpc_server, address, board, metrics)
                board.set_phase("serving")
                yield server
            finally:
                await grpc_server.stop(grace=None)
                for pool in pools:
                    await pool.close()
                background.cancel()


@contextmanager
def _state_log(config: EnvServerConfig) -> Iterator[StateLog | None]:
    if config.state_dir is None:
        yield None
        return
    log = StateLog(config.state_dir)
    try:
        yield log
    finally:
        try:
            log.close()
        except OSError as error:
            logger.error("the state dir lacks the last records", extra={"reason": str(error)})


def served_names(config: EnvServerConfig) -> tuple[str, ...]:
    """Names or import paths of the environments to serve; ConfigError if one does not exist."""
    for name in config.environments:
        find(name)
    return config.environments or served_by_default()


class _Parts:
    """The parts of a server, built and connected; ConfigError if a setting does not fit what the workers serve."""

    def __init__(
        self,
        config: EnvServerConfig,
        described: bytes,
        pools: list[WorkerPool],
        log: StateLog | None,
        access: Access,
        *,
        metrics: Metrics,
        background: Background,
    ) -> None:
        self.config, self.pools, self.access, self.background = config, pools, access, background
        pool, preparer_pool = pools
        self.catalog = _catalog(config, described)
        self.quarantine = Quarantine()
        self.durability = None if log is None else Durability(log, metrics=metrics)
        self.preparers = preparers = Preparers(
            preparer_pool, needed_by=self.catalog.preparing, num_preparers=config.num_preparers
        )
        self.table = EpisodeTable(
            pool,
            admission=Admission(_limits(config)),
            quarantine=self.quarantine,
            durability=self.durability,
            final_grace_s=config.final_grace_s,
            metrics=metrics,
        )
        last_key = 0 if log is None else Restorer(self.table, self.catalog.specs).restore(log, metrics=metrics)
        keys = itertools.count(last_key + 1)
        self.reaper = Reaper(self.table, pool, _times(config), metrics=metrics)
        rebuilder = Rebuilder(
            self.table, pool, preparers=preparers, keys=keys, metrics=metrics, spawn_task=background.spawn
        )
        starter = Starter(
            self.table,
            pool,
            catalog=self.catalog,
            preparers=preparers,
            rebuilder=rebuilder,
            mint=TokenMint(None if log is None else log.secret),
            keys=keys,
            forbid_privileged=config.forbid_privileged,
            metrics=metrics,
            spawn_task=background.spawn,
        )
        calls = Calls(self.table, starter, rebuilder, max_message_bytes=config.max_message_bytes)
        listing = Listing(self.catalog, preparers)
        self.service = EnvironmentService(calls, listing, server_info(config), access=access)


async def _start(
    parts: _Parts, grpc_server: grpc.aio.Server, address: str, board: StatusBoard, metrics: Metrics
) -> EnvServer:
    """Register the services, start what runs beside them, and begin to serve."""
    health_servicer = await register(grpc_server, parts.service, board, parts.config)
    spawn = parts.background.spawn
    spawn(parts.reaper.run_forever())
    spawn(_report(board, parts, metrics))
    for pool in parts.pools:
        spawn(pool.watch())
    if parts.durability is not None:
        spawn(parts.durability.keep_forever())
    if parts.access.demands_token:
        spawn(parts.access.reread_forever(parts.service.close_streams))
    await grpc_server.start()
    names = list(parts.catalog.specs)
    board.set_fact("address", address)
    board.set_fact("environments", ", ".join(names))
    logger.info("serving", extra={"address": address, "environments": names})
    return EnvServer(
        address=address,
        pool=parts.pools[0],
        table=parts.table,
        grpc_server=grpc_server,
        service=parts.service,
        health_servicer=health_servicer,
        board=board,
    )


async def _report(board: StatusBoard, parts: _Parts, metrics: Metrics) -> None:
    """Keep the status board's facts and the queues' gauges fresh; runs until cancelled."""
    while True:
        parts.pools[0].publish()
        parts.preparers.publish(metrics)
        for pool in parts.pools:
            states = Counter(worker.state.value for worker in pool.workers)
            board.set_fact(f"{pool.name}s", ", ".join(f"{number} {state}" for state, number in sorted(states.items())))
        board.set_fact("quarantined_tasks", parts.quarantine.listed())
        await asyncio.sleep(1.0)


def _catalog(config: EnvServerConfig, described: bytes) -> Catalog:
    catalog = Catalog(described)
    for name, reason in catalog.left_out.items():
        logger.warning("environment left out", extra={"environment": name, "reason": reason})
    for name in config.limits_by_environment:
        if name not in catalog.specs:
            hint = nearest_hint(name, catalog.specs)
            raise ConfigError(f"env_server.limits_by_environment.{name}: no such environment is served{hint}")
    return catalog


def _limits(config: EnvServerConfig) -> Limits:
    return Limits(
        max_episodes=config.max_episodes,
        max_episodes_per_client=config.max_episodes_per_client,
        max_requests_in_flight=config.max_requests_in_flight,
        max_rate_per_client=config.max_rate_per_client,
    )


def _times(config: EnvServerConfig) -> Times:
    return Times(
        lease_s=config.lease_s,
        max_episode_s=config.max_episode_s,
        final_grace_s=config.final_grace_s,
        hibernate_idle_s=config.hibernate_idle_s,
        max_awake=config.max_awake,
    )
