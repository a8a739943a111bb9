"""The two pools of worker processes: one that plays, one that prepares tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from env_server.config import EnvServerConfig
from env_server.guard import Guard
from env_server.limits import time_limit
from env_server.pool import PoolSettings, SpawnTask, WorkerPool
from env_server.sandbox.isolation import INSECURE_VARIABLE
from env_server.worker_process import WorkerSetup
from longturn.metrics import Metrics


def make_pool(
    config: EnvServerConfig,
    names: tuple[str, ...],
    root: Path,
    guard: Guard,
    *,
    is_preparer: bool,
    metrics: Metrics,
    spawn_task: SpawnTask,
) -> WorkerPool:
    """A pool that serves the named environments; `root` holds its workers' folders."""
    setup = WorkerSetup(
        name="preparer" if is_preparer else "worker",
        environments=names,
        is_strict=bool(config.environments),
        is_preparer=is_preparer,
        num_threads=1 if is_preparer else config.threads_per_worker,
        root=root,
        hidden_variables=frozenset({config.token_variable} - {""}),
        variables={INSECURE_VARIABLE: "1"} if config.insecure_sandbox else {},
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
    pool = WorkerPool(setup, settings, guard=guard, metrics=metrics, spawn_task=spawn_task)
    pool.time_limit = partial(time_limit, config)
    return pool
