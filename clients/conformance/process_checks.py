"""Checks across processes: hashes, replay, growth, and what is left when the server is gone."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clients.config import EnvClientConfig
from clients.conformance.neighbours import Neighbour
from clients.conformance.play_checks import need_reproducible
from clients.conformance.processes import Usage, command_line
from clients.conformance.runs import Run, check_equal, check_unbroken, end, place, repeat, script
from clients.conformance.server import CheckedServer
from clients.conformance.subject import CheckFailedError, Subject
from clients.environment import EnvClient
from clients.policies.text import RandomPolicy
from longturn.codec import step_result_from_proto

MAX_GROWTH_BYTES = 16 * 2**20
"""What a worker may grow over the second half of its resets; allocators are not exact."""
MAX_GROWTH_DESCRIPTORS = 4
MAX_GROWTH_PROCESSES = 1
ORPHAN_S = 5.0
"""How long after the server's death its processes may live."""
_NUM_KILLS = 3
_MIN_RESETS = 16
_LOOK_EVERY = 8
_HASH_BYTES = range(8, 17)


async def hashes_hold_across_processes(subject: Subject) -> str:
    """A fresh worker process gives the same hashes; they are 8 to 16 bytes and follow the state."""
    need_reproducible(subject)
    runs = [await script(subject, index) for index in range(len(subject.tasks))]
    for run in runs:
        for result in run.results:
            if len(result.state_hash) not in _HASH_BYTES:
                where = place(run.task, run.seed, result.turn_index)
                raise CheckFailedError(f"{where}: the state hash has {len(result.state_hash)} bytes, not 8 to 16")
    seen = {(result.state_hash, result.observation) for run in runs for result in run.results}
    if len({state_hash for state_hash, _ in seen}) == 1 < len({observation for _, observation in seen}):
        raise CheckFailedError(f"{runs[0].where}: the state hash is always the same, whatever the observation")
    await asyncio.to_thread(subject.server.kill_worker)
    for run in runs:
        check_equal(subject, run, (await repeat(subject, run)).results, when="in another process")
    return f"{len(runs)} episodes in two processes"


async def replay_reproduces_episodes(subject: Subject) -> str:
    """An episode whose worker was killed goes on where it stood, and its transcript tells what was played."""
    need_reproducible(subject)
    runs = [await script(subject, index) for index in range(min(_NUM_KILLS, len(subject.tasks)))]
    for run in runs:
        await _go_on_after_a_kill(subject, run)
    return f"{len(runs)} episodes"


async def _go_on_after_a_kill(subject: Subject, run: Run) -> None:
    options = {"with_progress": subject.info.has_progress, "with_oracle": subject.info.has_oracle}
    episode = await subject.envs.start(run.task, seed=run.seed, **options)
    results = [episode.initial]
    for turn_index, action in enumerate(run.actions):
        is_killed = turn_index == len(run.actions) // 2
        if is_killed:
            await asyncio.to_thread(subject.server.kill_worker)
        results.append(await episode.step(action))
        check_unbroken(results[-1], run.task, run.seed, after="its worker was killed")
        if is_killed and not results[-1].rebuilt:
            raise CheckFailedError(f"{place(run.task, run.seed, turn_index)}: the reply does not say rebuilt")
    check_equal(subject, run, results, when="after its worker was killed")
    told = (await subject.envs.get(episode)).transcript
    if [turn.action for turn in told] != list(run.actions):
        raise CheckFailedError(f"{run.where}: the transcript has other actions than were played")
    replayed = [episode.initial, *(step_result_from_proto(turn.result) for turn in told)]
    check_equal(subject, run, replayed, when="in the transcript")
    await end(episode)


async def resets_do_not_grow(subject: Subject) -> str:
    """Reset after reset, the worker needs no more memory, descriptors and processes."""
    options = subject.options
    deadline_s = time.monotonic() + options.seconds
    history: list[Usage] = []
    num_resets = 0
    while num_resets < options.num_resets and (num_resets < _MIN_RESETS or time.monotonic() < deadline_s):
        await _reset_once(subject, num_resets)
        num_resets += 1
        if num_resets % _LOOK_EVERY == 0:
            history.append(subject.server.worker_usage())
    if not history:
        history.append(subject.server.worker_usage())
    middle, last = history[len(history) // 2], history[-1]
    _check_growth(middle, last, f"over the last {num_resets // 2} of {num_resets} resets")
    return f"{num_resets} resets, {_mib(last.rss_bytes - middle.rss_bytes)} MiB more over the second half"


async def _reset_once(subject: Subject, index: int) -> None:
    task, seed = subject.tasks[index % len(subject.tasks)], subject.seed(index)
    episode = await subject.envs.start(task, seed=seed)
    check_unbroken(await episode.step((await RandomPolicy().begin(seed).act(episode.last)).action), task, seed)
    await end(episode)


def _check_growth(middle: Usage, last: Usage, when: str) -> None:
    grown: list[tuple[str, Callable[[Usage], int], int]] = [
        ("memory in bytes", lambda usage: usage.rss_bytes, MAX_GROWTH_BYTES),
        ("descriptors", lambda usage: usage.num_descriptors, MAX_GROWTH_DESCRIPTORS),
        ("processes", lambda usage: usage.num_processes, MAX_GROWTH_PROCESSES),
    ]
    for what, measure, allowed in grown:
        if measure(last) - measure(middle) > allowed:
            raise CheckFailedError(
                f"the worker's {what} grew from {measure(middle)} to {measure(last)} {when}; allowed is {allowed} more"
            )


async def no_child_is_left(subject: Subject) -> str:
    """With episodes in play, no process outlives the server: not after SIGTERM, and not 5 s after SIGKILL."""
    for name, is_killed in (("SIGTERM", False), ("SIGKILL", True)):
        with tempfile.TemporaryDirectory(prefix="longturn-check-") as folder:
            server = await asyncio.to_thread(CheckedServer, subject.server.environment, Path(folder))
            try:
                await _leave_alone(subject, server, name=name, is_killed=is_killed)
            finally:
                await asyncio.to_thread(server.stop)
    return "after SIGTERM and after SIGKILL"


async def _leave_alone(subject: Subject, server: CheckedServer, *, name: str, is_killed: bool) -> None:
    async with EnvClient(EnvClientConfig(address=server.address, connect_budget_s=1.0, outage_budget_s=1.0)) as envs:
        players = [Neighbour(subject.at(server, envs), index) for index in range(4)]
        for player in players:
            await player.start()
            await player.step()
        if is_killed:
            server.kill()
        elif not await asyncio.to_thread(server.terminate):
            raise CheckFailedError(f"the server did not end after {name}")
    left = await asyncio.to_thread(server.leftovers, grace_s=ORPHAN_S)
    if left:
        commands = "; ".join(" ".join(command_line(pid))[:200] for pid in left)
        raise CheckFailedError(f"{len(left)} processes live {ORPHAN_S:g} s after the server's {name}: {commands}")


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f}"
