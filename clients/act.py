"""Puts an actor pool together and runs it: the parts behind `longturn act`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clients.actor import Actor
from clients.agents import TokenAgent
from clients.assignment import PlayRules
from clients.config import ActConfig
from clients.environments import Environments, open_environments
from clients.group import GroupPlayers
from clients.learner_link import PoolOptions
from clients.policies.engines import EngineRegistry
from clients.policies.sglang import SglangPolicy
from clients.pool import ActorPool
from clients.renderer import load_renderer
from clients.rendering.contract import Renderer
from clients.spool import Spool
from longturn.dispatch import DispatchDealer, SocketLimits
from longturn.errors import LongturnError
from longturn.leaf import first_leaf
from longturn.metrics import Metrics, MetricsFile, MetricsServer
from longturn.ready import write_ready
from longturn.records import SamplingParams
from longturn.status import StatusBoard, StatusServer

logger = logging.getLogger(__name__)


def run_pool(config: ActConfig, *, ready_file: Path | None) -> int:
    """Run the pool until the learner ends the run (exit code 0) or a signal stops it (128 + its number)."""
    return asyncio.run(_main(config, ready_file))


async def _main(config: ActConfig, ready_file: Path | None) -> int:
    metrics = Metrics()
    board = StatusBoard("actors", metrics)
    pool_id = config.pool_id or platform.node() or "pool"
    renderer = load_renderer(config.renderer)

    def make_players(pool: ActorPool, parts: PoolParts) -> GroupPlayers:
        return group_players(pool, parts.envs, parts.policy, renderer, parts.engines, metrics, config.num_actors)

    async def play() -> None:
        with services(config, metrics, board, pool_id, ready_file):
            await play_run(config, pool_id, renderer, metrics, board, make_players)

    return await until_stopped(play)


async def until_stopped(work: Callable[[], Awaitable[None]]) -> int:
    """Exit code of the work: 0 at its end, 128 and the signal's number if SIGTERM or SIGINT ended it."""
    stopped_by = _stop_on_signals()
    try:
        await work()
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        logger.info("stopped", extra={"signal": stopped_by[0].name})
        return 128 + stopped_by[0]
    return 0


def _stop_on_signals() -> list[signal.Signals]:
    """Cancel the current task on SIGTERM and SIGINT; the returned list then holds which one it was."""
    received: list[signal.Signals] = []
    task = asyncio.current_task()

    def stop(number: signal.Signals) -> None:
        if not received and task is not None:
            received.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return received


@contextlib.contextmanager
def services(
    config: ActConfig,
    metrics: Metrics,
    board: StatusBoard,
    pool_id: str,
    ready_file: Path | None,
    *,
    table: str = "act",
    **more_facts: object,
) -> Iterator[None]:
    """Status, /metrics and the ready file."""
    with contextlib.ExitStack() as stack:
        status = StatusServer(board, port=config.status_port, setting=f"{table}.status_port")
        stack.callback(status.close)
        facts: dict[str, object] = {"status_address": status.address, "pool_id": pool_id, **more_facts}
        if config.metrics_port is not None:
            server = MetricsServer(metrics, port=config.metrics_port, setting=f"{table}.metrics_port")
            stack.callback(server.close)
            facts["metrics_address"] = f"127.0.0.1:{server.port}"
        write_ready(ready_file, facts)
        yield


class Tokens(Protocol):
    """What a pool must know of the ids it deals in."""

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the tokenizer's file."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        ...

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a completion."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """What players are made of."""

    envs: Environments
    policy: SglangPolicy
    engines: EngineRegistry


async def play_run(
    config: ActConfig,
    pool_id: str,
    tokens: Tokens,
    metrics: Metrics,
    board: StatusBoard,
    make_players: Callable[[ActorPool, PoolParts], GroupPlayers],
) -> None:
    """Play for the learner until its run is over."""
    spool = Spool(config.run_dir / "spool" / pool_id)
    engines = EngineRegistry()
    options = PoolOptions(
        pool_id=pool_id,
        incarnation=secrets.token_hex(6),
        num_actors=config.num_actors,
        learner_budget_s=config.dispatch.budget_s,
        max_unacked=config.dispatch.max_unacked,
        resend_s=config.dispatch.resend_s,
        tokenizer_hash=tokens.tokenizer_hash,
    )
    limits = SocketLimits(queue_messages=config.dispatch.queue_messages)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(spool.close)
        envs = await stack.enter_async_context(open_environments(config.env_server, board=board))
        policy = SglangPolicy(
            config.engine,
            engines=engines,
            stop_token_ids=tokens.stop_token_ids,
            stop_texts=tokens.stop_texts,
            metrics=metrics,
            board=board,
        )
        await stack.enter_async_context(policy)
        link = DispatchDealer(config.dispatch.address, pool_id=pool_id, incarnation=options.incarnation, limits=limits)
        await stack.enter_async_context(link)
        rows = stack.enter_context(MetricsFile(config.run_dir / "metrics" / f"actors-{pool_id}.jsonl"))
        await stack.enter_async_context(_reporting(rows, metrics, config.metrics_interval_s))
        parts = PoolParts(envs=envs, policy=policy, engines=engines)
        pool = ActorPool(
            options,
            link=link,
            engines=engines,
            make_players=lambda made: make_players(made, parts),
            spool=spool,
            metrics=metrics,
            board=board,
        )
        await pool.run()


def group_players(
    pool: ActorPool,
    envs: Environments,
    policy: SglangPolicy,
    renderer: Renderer,
    engines: EngineRegistry,
    metrics: Metrics,
    num_actors: int,
) -> GroupPlayers:
    def make_agent(sampling: SamplingParams, episode_key: str, rules: PlayRules) -> TokenAgent:
        return TokenAgent(
            policy,
            renderer,
            sampling,
            episode_key=episode_key,
            max_episode_tokens=rules.max_episode_tokens,
            metrics=metrics,
        )

    return GroupPlayers(
        actor=Actor(envs, metrics=metrics),
        make_agent=make_agent,
        engines=engines,
        capacity=asyncio.Semaphore(num_actors),
        submit=pool.submit,
        on_freed=pool.wants_more,
        tokenizer_hash=renderer.tokenizer_hash,
        metrics=metrics,
    )


@contextlib.asynccontextmanager
async def _reporting(rows: MetricsFile, metrics: Metrics, interval_s: float) -> AsyncIterator[None]:
    """Write a row of all values per interval, on the axis of finished episodes, and one at the end.

    A row that cannot be written ends the block with DiskError.
    """

    def write() -> None:
        values = metrics.snapshot()
        rows.write("num_finished_episodes", int(values.get("actors/episode/num_finished", 0)), values)

    async def write_rows() -> None:
        while True:
            await asyncio.sleep(interval_s)
            write()

    failure: LongturnError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(write_rows(), name="metrics-rows")
            yield
            writer.cancel()
    except* LongturnError as errors:
        failure = first_leaf(errors)
    finally:
        write()
    if failure is not None:
        raise failure
