"""Workers that come and go at bad moments."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from env_server.background import Background
from env_server.guard import Guard
from env_server.pool import PoolSettings, WorkerPool
from env_server.worker_process import WorkerSetup
from longturn.metrics import Metrics
from tests.env_server.loopback import loopback
from tests.support.waiting import until

CANNOT_SPAWN = "worker cannot be spawned"


def test_a_worker_raised_while_the_pool_closes_goes_with_it() -> None:
    async def main() -> None:
        async with loopback() as client:
            await client.start()
            pool = client.server.pool

            async def isolate() -> None:
                async with pool.isolated():
                    raise AssertionError("the pool gave out a worker while it closed")

            isolating = asyncio.create_task(isolate())
            await until(lambda: len(pool.workers) == 2)  # the only worker is taken, so the task raises another one
            await pool.close()
            assert not pool.workers
            isolating.cancel()

    asyncio.run(main())


def test_a_worn_worker_waits_for_a_successor_that_cannot_be_spawned_yet(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with loopback(recycle_episodes=1, recycle_grace_s=0.1) as client:
            (worn,) = client.server.pool.workers
            root = worn.folder.parent
            away = root.rename(root.with_name(f"{root.name}-away"))  # no folder for a worker: as on a full disk
            player = await client.start()
            await until(lambda: CANNOT_SPAWN in caplog.text)
            assert (await player.step()).turn_index == 1
            away.rename(root)
            await until(lambda: worn not in client.server.pool.workers)
            assert (await player.step()).turn_index == 2

    asyncio.run(main())


def _pool(group: asyncio.TaskGroup, root: Path, guard: Guard) -> WorkerPool:
    """A pool of one worker whose folders lie in `root`."""
    setup = WorkerSetup(
        name="worker", environments=("echo",), is_strict=True, is_preparer=False, num_threads=1, root=root
    )
    settings = PoolSettings(
        num_workers=1,
        ready_timeout_s=60.0,
        wait_s=60.0,
        recycle_episodes=0,
        recycle_rss_bytes=0,
        recycle_grace_s=1.0,
        recycle_limit_s=1.0,
        longest_limit_s=60.0,
        tick_s=0.5,
    )
    return WorkerPool(setup, settings, guard=guard, metrics=Metrics(), spawn_task=Background(group).spawn)


def test_a_pool_starts_once_its_workers_can_be_spawned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"

    async def main() -> None:
        with Guard(root) as guard:
            async with asyncio.TaskGroup() as group:
                pool = _pool(group, root, guard)
                starting = group.create_task(pool.start())
                await until(lambda: CANNOT_SPAWN in caplog.text)
                root.mkdir()
                assert b'"echo"' in await starting
                await pool.close()

    asyncio.run(main())


def test_a_pool_closes_though_the_tasks_that_attend_its_workers_were_cancelled(tmp_path: Path) -> None:
    pools: list[WorkerPool] = []

    async def crash() -> None:
        raise ZeroDivisionError("crashed on request")

    async def main() -> None:
        with Guard(tmp_path) as guard:
            async with asyncio.TaskGroup() as group:
                pool = _pool(group, tmp_path, guard)
                pools.append(pool)
                try:
                    await pool.start()
                    group.create_task(crash())
                    await asyncio.Event().wait()
                finally:
                    await pool.close()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
    assert not pools[0].workers
