"""Plays a list of tasks, each as one episode, a fixed number at once.

Invariant: every entry ends in exactly one outcome, in the entries' order: a trajectory that the policy brought to an
end, or the reason why no fresh episode of it could be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clients.actor import Actor, EpisodePlan
from clients.agents import Agent
from clients.calls import Backoff
from clients.group import broken_by
from clients.policies.base import derive_seed
from clients.retry_rules import is_transient, meets_every_task
from longturn.errors import CallRefusedError, EpisodeError, LongturnError, PolicyError, UnreachableError
from longturn.leaf import first_leaf
from longturn.records import SamplingParams, Trajectory
from longturn.task_file import TaskEntry

logger = logging.getLogger(__name__)

_MAX_RETRIES = 2
"""Fresh episodes an entry may take after one that broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """How the panel's episodes are played."""

    make_agent: Callable[[int, str], Agent]
    """From the episode's sampling seed and its key."""
    sampling: Callable[[int], SamplingParams | None]
    """Recorded parameters for a sampling seed; None for text policies."""
    needs_oracle: bool = False
    tokenizer_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelOptions:
    """How a panel is played."""

    seed: int = 0
    """Seeds the policy; entry i plays with a value derived from it."""
    concurrency: int = 32
    max_turns: int = 0
    with_progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an entry: a trajectory that the policy brought to an end, or why there is none."""

    entry: TaskEntry
    result: Trajectory | LongturnError


async def play_panel(
    entries: Sequence[TaskEntry],
    player: Player,
    actor: Actor,
    options: PanelOptions,
    *,
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Play all entries; `on_outcome` sees each as it ends. Raises what every other entry would only repeat."""
    outcomes: list[Outcome | None] = [None] * len(entries)
    remaining = iter(range(len(entries)))

    async def work() -> None:
        for index in remaining:
            outcome = await _play_entry(index, entries[index], player, actor, options)
            outcomes[index] = outcome
            on_outcome(outcome)

    failure: LongturnError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(options.concurrency, len(entries))):
                tasks.create_task(work())
    except* LongturnError as errors:
        failure = first_leaf(errors)
    if failure is not None:
        raise failure
    return [outcome for outcome in outcomes if outcome is not None]


async def _play_entry(index: int, entry: TaskEntry, player: Player, actor: Actor, options: PanelOptions) -> Outcome:
    backoff = Backoff()
    retry_index = 0
    while True:
        result = await _try_once(index, retry_index, entry, player, actor, options)
        if isinstance(result, Trajectory):
            return Outcome(entry=entry, result=result)
        logger.warning("episode broke", extra={"task_id": entry.task.task_id, "cause": str(result)})
        if meets_every_task(result):
            raise result
        if retry_index == _MAX_RETRIES or not is_transient(result):
            return Outcome(entry=entry, result=result)
        retry_index += 1
        await asyncio.sleep(backoff.delay_s(retry_index))


async def _try_once(
    index: int, retry_index: int, entry: TaskEntry, player: Player, actor: Actor, options: PanelOptions
) -> Trajectory | LongturnError:
    seed = derive_seed(options.seed, index, retry_index)
    agent = player.make_agent(seed, f"panel-{options.seed}-{index}-{retry_index}")
    try:
        trajectory = await actor.play(_plan(entry, seed, retry_index, player, options), agent)
    except (EpisodeError, PolicyError, UnreachableError, CallRefusedError) as error:
        return error
    return broken_by(trajectory, is_wall_time_broken=False) or trajectory


def _plan(entry: TaskEntry, seed: int, retry_index: int, player: Player, options: PanelOptions) -> EpisodePlan:
    return EpisodePlan(
        task=entry.task,
        seed=entry.seed,
        task_kind=entry.kind,
        max_turns=options.max_turns,
        with_progress=options.with_progress,
        with_oracle=player.needs_oracle,
        retry_index=retry_index,
        sampling=player.sampling(seed),
        tokenizer_hash=player.tokenizer_hash,
    )
