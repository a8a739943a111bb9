"""Walks mazes of rooms with a hand on the wall and says what it sees.

What it does depends only on the newest observation and on where it came from, so that a policy which reads those can
learn it. An expert that knows the map would teach coin flips: its choices at junctions cannot be predicted from text.
"""

from __future__ import annotations

import random

from clients.demonstrators.rooms import DIRECTIONS, NOWHERE, Walk, check_shares, shows_coin
from clients.policies.base import TextAction
from longturn.records import StepResult


class WallFollower:
    """At a junction takes the next exit clockwise with probability `follow_probability`, else another one."""

    needs_oracle = False

    def __init__(self, follow_probability: float = 0.8, noise: float = 0.04) -> None:
        """`noise` is the share of arbitrary moves; they show how to go on after a mistake and are not imitated."""
        check_shares(follow_probability=follow_probability, noise=noise)
        self._follow_probability = follow_probability
        self._noise = noise

    def begin(self, seed: int) -> _Walker:
        """A fresh walk; equal seeds walk equally."""
        return _Walker(random.Random(seed), self._follow_probability, self._noise)


class _Walker:
    def __init__(self, draw: random.Random, follow_probability: float, noise: float) -> None:
        self._draw = draw
        self._follow_probability = follow_probability
        self._noise = noise
        self._walk = Walk()

    async def act(self, result: StepResult) -> TextAction:
        if shows_coin(result.observation):
            return TextAction(action="take coin", reasoning="coin")
        self._walk.read(result.observation)
        direction = self._choose()
        is_trained = self._draw.random() >= self._noise
        if not is_trained:
            direction = self._draw.choice(DIRECTIONS)
        here = self._walk.here
        reasoning = f"exits {' '.join(here.exits)} from {here.came_from or NOWHERE}"
        self._walk.move(direction)
        return TextAction(action=f"go {direction}", reasoning=reasoning, is_trained=is_trained)

    def _choose(self) -> str:
        """The next exit clockwise from where it came, or another; back only out of a dead end."""
        ahead = self._walk.here.ahead()
        if not ahead:
            return self._walk.here.came_from or self._draw.choice(DIRECTIONS)
        if len(ahead) == 1 or self._draw.random() < self._follow_probability:
            return ahead[0]
        return self._draw.choice(ahead[1:])
