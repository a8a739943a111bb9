"""Walks mazes of rooms with a hand on the wall and says what it sees.

What it does depends only on the newest observation and on where it came from, so that a policy which reads those can
learn it. An expert that knows the map would teach coin flips: its choices at junctions cannot be predicted from text.
"""

from __future__ import annotations

import random
import re

from clients.policies.base import TextAction
from longturn.records import StepResult

DIRECTIONS = ("north", "east", "south", "west")
_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
_DIRECTION = re.compile(rf"\b({'|'.join(DIRECTIONS)})\b")
_ROOM_TITLE = "=-"
_COIN = "coin on"


class WallFollower:
    """At a junction takes the next exit clockwise with probability `follow_probability`, else another one."""

    needs_oracle = False

    def __init__(self, follow_probability: float = 0.8, noise: float = 0.04) -> None:
        """`noise` is the share of arbitrary moves; they show how to go on after a mistake and are not imitated."""
        for name, value in (("follow_probability", follow_probability), ("noise", noise)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        self._follow_probability = follow_probability
        self._noise = noise

    def begin(self, seed: int) -> _Walk:
        """A fresh walk; equal seeds walk equally."""
        return _Walk(random.Random(seed), self._follow_probability, self._noise)


class _Walk:
    def __init__(self, draw: random.Random, follow_probability: float, noise: float) -> None:
        self._draw = draw
        self._follow_probability = follow_probability
        self._noise = noise
        self._exits: list[str] = []
        self._came_from: str | None = None
        self._moved: str | None = None

    async def act(self, result: StepResult) -> TextAction:
        if _COIN in result.observation:
            return TextAction(action="take coin", reasoning="coin")
        if _ROOM_TITLE in result.observation:
            self._enter(result.observation)
        direction = self._choose()
        is_trained = self._draw.random() >= self._noise
        if not is_trained:
            direction = self._draw.choice(DIRECTIONS)
        if direction in self._exits:
            self._moved = direction
        exits = " ".join(self._exits)
        reasoning = f"exits {exits} from {self._came_from or 'start'}"
        return TextAction(action=f"go {direction}", reasoning=reasoning, is_trained=is_trained)

    def _enter(self, observation: str) -> None:
        """Read a room; after a refused move no room is shown and everything stays as it was."""
        _, _, text = observation.partition(_ROOM_TITLE)
        self._exits = list(dict.fromkeys(_DIRECTION.findall(text)))
        self._came_from = _OPPOSITE[self._moved] if self._moved else None

    def _choose(self) -> str:
        """The next exit clockwise from where it came; back only out of a dead end."""
        back = DIRECTIONS.index(self._came_from) if self._came_from else len(DIRECTIONS) - 1
        clockwise = [DIRECTIONS[(back + turn) % len(DIRECTIONS)] for turn in range(1, len(DIRECTIONS) + 1)]
        ahead = [direction for direction in clockwise if direction in self._exits and direction != self._came_from]
        if not ahead:
            return self._came_from or self._draw.choice(DIRECTIONS)
        if len(ahead) == 1 or self._draw.random() < self._follow_probability:
            return ahead[0]
        return self._draw.choice(ahead[1:])
