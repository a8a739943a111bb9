"""Wanders through mazes of rooms with good notes and no policy.

Its notes hold what is needed to find the way without a map, and it flips a coin where that matters. What imitates it
reads and writes the notes and succeeds about as seldom, at any temperature: which word of a note to prefer is left to
reinforcement learning.
"""

from __future__ import annotations

import random

from clients.demonstrators.rooms import DIRECTIONS, NOWHERE, Walk, check_shares, shows_coin
from clients.policies.base import TextAction
from longturn.records import StepResult

ONWARD, RETURN = "onward", "return"


class Wanderer:
    """Takes the next exit clockwise with probability `follow_probability`, but back from a dead end it flips a coin.

    In a dead end it notes how it entered the room before (`via`). Back in that room, where that leaves a choice, its
    note ends in a plan with the direction that it means: `onward`, or, with probability `return_probability`, `return`
    by the way noted. Every word follows from the newest observation and the note before, and the action repeats the
    last one, so that all but the coin flips can be learned; a plan without its direction could not: together with the
    way noted it decides, alone it says nothing.
    """

    needs_oracle = False

    def __init__(self, return_probability: float = 0.5, follow_probability: float = 1.0, noise: float = 0.04) -> None:
        """`noise` is the share of arbitrary moves; they show how to go on after a mistake and are not imitated."""
        check_shares(return_probability=return_probability, follow_probability=follow_probability, noise=noise)
        self._return_probability = return_probability
        self._follow_probability = follow_probability
        self._noise = noise

    def begin(self, seed: int) -> _Wandering:
        """A fresh walk; equal seeds walk equally."""
        return _Wandering(random.Random(seed), self._return_probability, self._follow_probability, self._noise)


class _Wandering:
    def __init__(self, draw: random.Random, return_probability: float, follow_probability: float, noise: float) -> None:
        self._draw = draw
        self._return_probability = return_probability
        self._follow_probability = follow_probability
        self._noise = noise
        self._walk = Walk()
        self._plan: tuple[str, str] | None = None
        """Word and direction."""

    async def act(self, result: StepResult) -> TextAction:
        if shows_coin(result.observation):
            return TextAction(action="take coin", reasoning="coin")
        if self._walk.read(result.observation):
            self._plan = self._make_plan()
        direction = self._choose()
        is_trained = self._draw.random() >= self._noise
        if not is_trained:
            direction = self._draw.choice(DIRECTIONS)
        reasoning = self._note()
        self._walk.move(direction)
        return TextAction(action=f"go {direction}", reasoning=reasoning, is_trained=is_trained)

    def _make_plan(self) -> tuple[str, str] | None:
        here = self._walk.here
        others = [direction for direction in here.ahead() if direction != here.entry]
        if not here.is_after_dead_end or here.entry not in here.ahead() or not others:
            return None
        if self._draw.random() < self._return_probability:
            return RETURN, here.entry
        return ONWARD, self._draw.choice(others)

    def _note(self) -> str:
        here = self._walk.here
        note = f"exits {' '.join(here.exits)} from {here.came_from or NOWHERE}"
        if here.is_dead_end:
            return f"{note} via {self._walk.before.entry or NOWHERE}"
        return " ".join((note, *(self._plan or ())))

    def _choose(self) -> str:
        """As planned; without a plan the next exit clockwise, or another; back only out of a dead end."""
        if self._plan is not None:
            return self._plan[1]
        here = self._walk.here
        ahead = here.ahead()
        if not ahead:
            return here.came_from or self._draw.choice(DIRECTIONS)
        if len(ahead) == 1 or self._draw.random() < self._follow_probability:
            return ahead[0]
        return self._draw.choice(ahead[1:])
