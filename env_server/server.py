"""The environment server: workers, episodes and the gRPC server that shows them.

Invariant: nothing is served before the workers are ready, and nothing is left running after `serving` ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from env_server.background import Background
from env_server.calls import Calls
from env_server.catalog import Catalog
from env_server.config import EnvServerConfig
from env_server.episode_table import EpisodeTable, TableLimits
from env_server.guard import Guard
from env_server.limits import time_limit
from env_server.listing import Listing
from env_server.pool import PoolSettings, WorkerPool
from env_server.preparers import Preparers
from env_server.rebuilder import Rebuilder
from env_server.registry import find, registered
from env_server.server_info import server_info
from env_server.service import EnvironmentService
from env_server.starter import Starter
from env_server.tokens import TokenMint
from env_server.worker_process import WorkerSetup
from longturn.errors import ConfigError
from longturn.metrics import Metrics
from longturn.nearest import nearest_hint
from longturn.status import StatusBoard, StatusServicer
from longturn.v1 import environment_pb2, environment_pb2_grpc, status_pb2, status_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE = environment_pb2.DESCRIPTOR.services_by_name["EnvironmentService"].full_name
STATUS_SERVICE = status_pb2.DESCRIPTOR.services_by_name["StatusService"].full_name
PENDING_CALLS = 65_536
"""gRPC cancels calls at random beyond its default of 1,000 waiting ones."""


class Health(Protocol):
    """The standard health service."""

    async def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Set a service's status."""
        ...

    async def enter_graceful_shutdown(self) -> None:
        """Set every service to NOT_SERVING for good."""
        ...


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
                await self.table.drain()
        except TimeoutError:
            logger.warning("calls still in flight after env_server.drain_timeout_s are cut off")
        self.service.close_streams()
        await self._grpc_server.stop(grace=0.5)


@asynccontextmanager
async def serving(config: EnvServerConfig, *, metrics: Metrics, board: StatusBoard) -> AsyncIterator[EnvServer]:
    """Run a server while the block runs; raise ConfigError if it cannot start."""
    names = served_names(config)
    grpc_server, address = _bind(config)
    root = Path(tempfile.mkdtemp(prefix="longturn-serve-"))
    with Guard(root) as guard:
        async with asyncio.TaskGroup() as group:
            background = Background(group)
            pools = [
                _pool(config, names, root, guard, metrics, background, is_preparer=is_preparer)
                for is_preparer in (False, True)
            ]
            try:
                with board.waiting("workers", "to become ready", budget_s=config.worker_ready_timeout_s):
                    described, _ = await asyncio.gather(*(pool.start() for pool in pools))
                server = await _start(config, described, grpc_server, address, pools, metrics, board, background)
                board.set_phase("serving")
                yield server
            finally:
                await grpc_server.stop(grace=None)
                for pool in pools:
                    await pool.close()
                background.cancel()


def served_names(config: EnvServerConfig) -> tuple[str, ...]:
    """Names or import paths of the environments to serve; ConfigError if one does not exist."""
    for name in config.environments:
        find(name)
    return config.environments or tuple(sorted(registered()))


def _bind(config: EnvServerConfig) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(
        options=[
            # Actions between one and two limits are refused by this server, with the setting's name; more by gRPC.
            ("grpc.max_receive_message_length", 2 * config.max_message_bytes),
            ("grpc.max_send_message_length", config.max_message_bytes),
            ("grpc.server.max_pending_requests", PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
            ("grpc.max_concurrent_streams", PENDING_CALLS),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", round(config.keepalive_s * 1000) or 2**31 - 1),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ]
    )
    host = f"[{config.host}]" if ":" in config.host else config.host
    try:
        port = server.add_insecure_port(f"{host}:{config.port}")
    except RuntimeError as error:
        raise ConfigError(
            f"cannot bind {host}:{config.port}: the port is in use or the address is not this machine's;"
            " change env_server.port (0 chooses a free one) or env_server.host"
        ) from error
    return server, f"{host}:{port}"


def _pool(
    config: EnvServerConfig,
    names: tuple[str, ...],
    root: Path,
    guard: Guard,
    metrics: Metrics,
    background: Background,
    *,
    is_preparer: bool,
) -> WorkerPool:
    setup = WorkerSetup(
        name="preparer" if is_preparer else "worker",
        environments=names,
        is_strict=bool(config.environments),
        is_preparer=is_preparer,
        num_threads=1 if is_preparer else config.threads_per_worker,
        root=root,
    )
    all_limits = (config.limits, *map(config.limits_of, config.limits_by_environment))
    times_s = (
        [limits.prepare_timeout_s for limits in all_limits]
        if is_preparer
        else [time_s for limits in all_limits for time_s in (limits.step_timeout_s, limits.start_timeout_s)]
    )
    settings = PoolSettings(
        num_workers=config.num_preparers if is_preparer else config.num_playing_workers,
        ready_timeout_s=config.worker_ready_timeout_s,
        wait_s=config.worker_wait_s,
        recycle_episodes=0 if is_preparer else config.recycle_episodes,
        recycle_rss_bytes=config.recycle_rss_bytes,
        recycle_grace_s=config.recycle_grace_s,
        recycle_limit_s=config.recycle_limit_s,
        longest_limit_s=max(times_s),
        tick_s=min(0.5, min(times_s) / 4),
    )
    pool = WorkerPool(setup, settings, guard=guard, metrics=metrics, spawn_task=background.spawn)
    pool.time_limit = partial(time_limit, config)
    return pool


async def _start(
    config: EnvServerConfig,
    described: bytes,
    grpc_server: grpc.aio.Server,
    address: str,
    pools: list[WorkerPool],
    metrics: Metrics,
    board: StatusBoard,
    background: Background,
) -> EnvServer:
    """Build the parts, register the services and begin to serve."""
    pool, preparer_pool = pools
    catalog = Catalog(described)
    for name, reason in catalog.left_out.items():
        logger.warning("environment left out", extra={"environment": name, "reason": reason})
    for name in config.limits_by_environment:
        if name not in catalog.specs:
            hint = nearest_hint(name, catalog.specs)
            raise ConfigError(f"env_server.limits_by_environment.{name}: no such environment is served{hint}")
    preparers = Preparers(preparer_pool, num_preparers=config.num_preparers)
    table = EpisodeTable(pool, _table_limits(config), metrics=metrics)
    keys = itertools.count(1)
    rebuilder = Rebuilder(table, pool, keys=keys, metrics=metrics, spawn_task=background.spawn)
    starter = Starter(
        table,
        pool,
        catalog=catalog,
        preparers=preparers,
        rebuilder=rebuilder,
        mint=TokenMint(),
        keys=keys,
        forbid_privileged=config.forbid_privileged,
        metrics=metrics,
        spawn_task=background.spawn,
    )
    calls = Calls(table, starter, rebuilder, max_message_bytes=config.max_message_bytes)
    service = EnvironmentService(calls, Listing(catalog, preparers), server_info(config))
    health_servicer = await _register(grpc_server, service, board, has_reflection=config.reflection)
    for work in (table.reap_forever(), _report(board, pools, starter), *(each.watch() for each in pools)):
        background.spawn(work)
    await grpc_server.start()
    board.set_fact("address", address)
    board.set_fact("environments", ", ".join(catalog.specs))
    logger.info("serving", extra={"address": address, "environments": list(catalog.specs)})
    return EnvServer(
        address=address,
        pool=pool,
        table=table,
        grpc_server=grpc_server,
        service=service,
        health_servicer=health_servicer,
        board=board,
    )


async def _report(board: StatusBoard, pools: list[WorkerPool], starter: Starter) -> None:
    """Keep the status board's facts fresh; runs until cancelled."""
    while True:
        for pool in pools:
            states = Counter(worker.state.value for worker in pool.workers)
            board.set_fact(f"{pool.name}s", ", ".join(f"{number} {state}" for state, number in sorted(states.items())))
        board.set_fact("quarantined_tasks", ", ".join(starter.quarantined) or "none")
        await asyncio.sleep(1.0)


def _table_limits(config: EnvServerConfig) -> TableLimits:
    return TableLimits(
        lease_s=config.lease_s,
        max_episode_s=config.max_episode_s,
        final_grace_s=config.final_grace_s,
        max_episodes=config.max_episodes,
        max_episodes_per_client=config.max_episodes_per_client,
        max_requests_in_flight=config.max_requests_in_flight,
    )


async def _register(
    grpc_server: grpc.aio.Server, service: EnvironmentService, board: StatusBoard, *, has_reflection: bool
) -> Health:
    environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(service, grpc_server)
    status_pb2_grpc.add_StatusServiceServicer_to_server(StatusServicer(board), grpc_server)
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack it
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, grpc_server)
    for name in ("", SERVICE, STATUS_SERVICE):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    if has_reflection:
        names = (SERVICE, STATUS_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, grpc_server)
    return health_servicer
