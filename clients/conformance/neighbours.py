"""Episodes that are played at random beside the one that a check looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clients.conformance.runs import Run, check_unbroken, end, play
from clients.conformance.subject import Subject
from clients.policies.base import TextAction
from clients.policies.text import RandomPolicy, ScriptedTextPolicy
from longturn.records import StepResult

_NUM_BUSY = 8
"""So many neighbours step at once with each step of the episode that is looked at."""
_FIRST_INDEX = 500


class Neighbour:
    """One place that always has an episode in play: `start` it, and `step` begins a new one after the last turn."""

    def __init__(self, subject: Subject, index: int) -> None:
        self._subject = subject
        self._task = subject.tasks[index % len(subject.tasks)]
        self._seed = subject.seed(_FIRST_INDEX + index)
        self._player = RandomPolicy().begin(self._seed)

    async def start(self) -> None:
        """Begin an episode."""
        self._episode = await self._subject.envs.start(self._task, seed=self._seed)

    async def step(self) -> StepResult:
        """Take a random turn; raise CheckFailedError if the episode breaks."""
        if self._episode.last.status.is_final:
            await self.start()
        result = await self._episode.step((await self._player.act(self._episode.last)).action)
        check_unbroken(result, self._task, self._seed)
        return result

    async def end(self) -> None:
        """End its episode."""
        await end(self._episode)


class BusyPlayer:
    """Plays a run's actions again, each while some neighbours step too."""

    def __init__(self, run: Run, neighbours: Sequence[Neighbour]) -> None:
        self._player = ScriptedTextPolicy(run.actions).begin(run.seed)
        self._neighbours = neighbours
        self._next = 0
        self._running: asyncio.Future[list[StepResult]] | None = None

    async def act(self, result: StepResult) -> TextAction:
        """Send the neighbours off and answer at once."""
        await self.rest()
        busy = [self._neighbours[(self._next + i) % len(self._neighbours)] for i in range(self._num_busy)]
        self._next += len(busy)
        self._running = asyncio.gather(*(neighbour.step() for neighbour in busy))
        return await self._player.act(result)

    async def rest(self) -> None:
        """Wait until the neighbours have stepped."""
        if self._running is not None:
            await self._running

    @property
    def _num_busy(self) -> int:
        return min(_NUM_BUSY, len(self._neighbours))


async def repeat_beside(subject: Subject, run: Run, neighbours: Sequence[Neighbour]) -> Run:
    """The same start and the same actions again, among the neighbours."""
    player = BusyPlayer(run, neighbours)
    limit, with_oracle = len(run.actions), subject.info.has_oracle
    beside = await play(subject, run.task, run.seed, player, limit=limit, with_oracle=with_oracle)
    await player.rest()
    return beside
