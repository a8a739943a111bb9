"""Episodes that the suite plays, kept whole, and how two of them differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from clients.conformance.subject import CheckFailedError, Subject
from clients.episode import RemoteEpisode
from clients.policies.base import TextAction, TextPlayer
from clients.policies.text import OraclePolicy, RandomPolicy, ScriptedTextPolicy
from longturn.errors import LongturnError
from longturn.records import EndCause, StepResult, Task

MAX_SCRIPT_TURNS = 16
"""Turns of an episode that is played again and again."""
_SHOWN_CHARS = 60
_FIELDS = ("state_hash", "reward", "score", "success", "status", "action_valid", "progress")
_EXACT_FIELDS = (*_FIELDS, "observation", "admissible_actions", "extras", "oracle_action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A played episode, or the beginning of one. `results[0]` is the start's, `results[i + 1]` answers `actions[i]`."""

    task: Task
    seed: int
    actions: tuple[str, ...]
    results: tuple[StepResult, ...]

    @property
    def last(self) -> StepResult:
        """Where it stands."""
        return self.results[-1]

    @property
    def where(self) -> str:
        """The run in a message."""
        return place(self.task, self.seed, self.last.turn_index)


def place(task: Task, seed: int, turn_index: int) -> str:
    """An episode and a turn of it in a message."""
    return f"task {task.task_id} seed {seed} turn {turn_index}"


async def play(
    subject: Subject,
    task: Task,
    seed: int,
    player: TextPlayer,
    *,
    limit: int | None = None,
    max_turns: int = 0,
    with_oracle: bool = False,
) -> Run:
    """Play to the end, or at most `limit` turns; raise CheckFailedError if the episode breaks."""
    actions: list[str] = []
    try:
        episode = await subject.envs.start(
            task, seed=seed, max_turns=max_turns, with_oracle=with_oracle, with_progress=subject.info.has_progress
        )
        results = [episode.initial]
        while not results[-1].status.is_final and (limit is None or len(actions) < limit):
            actions.append((await player.act(results[-1])).action)
            results.append(await episode.step(actions[-1]))
        await end(episode)
    except LongturnError as error:
        raise CheckFailedError(f"{place(task, seed, len(actions))}: {error.reason}: {error}") from error
    check_unbroken(results[-1], task, seed)
    return Run(task=task, seed=seed, actions=tuple(actions), results=tuple(results))


async def end(episode: RemoteEpisode) -> None:
    """End an episode that still runs."""
    if not episode.last.status.is_final:
        await episode.end(EndCause.CLIENT_REQUEST)


def check_unbroken(result: StepResult, task: Task, seed: int, *, after: str = "") -> None:
    """Raise CheckFailedError if the episode FAILED or was lost."""
    if result.failure is not None:
        where = place(task, seed, result.turn_index) + (f" after {after}" if after else "")
        raise CheckFailedError(f"{where}: FAILED({result.failure.reason}): {result.failure.message}")


async def script(subject: Subject, index: int) -> Run:
    """The beginning of an episode of sample task `index`: half oracle where there is one, half random."""
    task, seed = subject.tasks[index % len(subject.tasks)], subject.seed(index)
    return await play(
        subject, task, seed, MixedPlayer(seed), limit=MAX_SCRIPT_TURNS, with_oracle=subject.info.has_oracle
    )


async def repeat(subject: Subject, run: Run) -> Run:
    """The same start and the same actions again."""
    player = ScriptedTextPolicy(run.actions).begin(run.seed)
    with_oracle = subject.info.has_oracle
    return await play(subject, run.task, run.seed, player, limit=len(run.actions), with_oracle=with_oracle)


class MixedPlayer:
    """The oracle's action in half of the turns where it is known, else a random one."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._random = RandomPolicy().begin(seed)
        self._oracle = OraclePolicy().begin(seed)

    async def act(self, result: StepResult) -> TextAction:
        """Answer the newest result."""
        is_led = result.oracle_action is not None and self._draw.random() < 0.5
        return await (self._oracle if is_led else self._random).act(result)


def check_equal(subject: Subject, first: Run, again: Sequence[StepResult], *, when: str) -> None:
    """Raise CheckFailedError at the first turn where the results differ; texts count only for exact environments."""
    fields = _EXACT_FIELDS if subject.info.is_exact else _FIELDS
    for turn_index, (expected, result) in enumerate(zip(first.results, again, strict=False)):
        for name in fields:
            was, became = getattr(expected, name), getattr(result, name)
            if was != became:
                where = place(first.task, first.seed, turn_index)
                raise CheckFailedError(f"{where}: {name} {when} is {_shown(became)}, was {_shown(was)}")
    if len(again) != len(first.results):
        raise CheckFailedError(f"{first.where}: {when} the episode has {len(again) - 1} turns")


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
