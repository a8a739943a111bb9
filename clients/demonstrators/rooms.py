"""What can be read from a room's text, and from the moves so far, without a map."""

from __future__ import annotations

import re

DIRECTIONS = ("north", "east", "south", "west")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
START = "start"
"""Stands for the direction that the first room was entered from."""

_DIRECTION = re.compile(rf"\b({'|'.join(DIRECTIONS)})\b")
_ROOM_TITLE = "=-"
_COIN = "coin on"


class RoomReader:
    """Keeps the exits of the room it is in and where it came from."""

    def __init__(self) -> None:
        self.exits: tuple[str, ...] = ()
        self.came_from: str | None = None
        """Direction of the room before; None in the first one."""
        self.entry: str | None = None
        """Where the room was entered from, which differs from `came_from` after a look next door and straight back."""
        self.is_back = False
        """Whether the last two moves cancelled each other."""
        self._entries: list[str | None] = []
        self._moves: list[str] = []

    def read(self, observation: str) -> None:
        """Take in an observation; after a refused move no room is shown and everything stays as it was."""
        if _ROOM_TITLE not in observation:
            return
        _, _, text = observation.partition(_ROOM_TITLE)
        self.exits = tuple(dict.fromkeys(_DIRECTION.findall(text)))
        if len(self._entries) > len(self._moves):
            return  # the same room again
        self.came_from = OPPOSITE[self._moves[-1]] if self._moves else None
        self.is_back = len(self._moves) > 1 and self.came_from == self._moves[-2]
        self.entry = self._entries[-2] if self.is_back else self.came_from
        self._entries.append(self.entry)

    def move(self, direction: str) -> None:
        """Note a move that will be made; one that the room has no exit for is refused and leads nowhere."""
        if direction in self.exits:
            self._moves.append(direction)

    def ahead(self) -> list[str]:
        """The exits other than the one it came through, clockwise from there."""
        back = DIRECTIONS.index(self.came_from) if self.came_from else len(DIRECTIONS) - 1
        clockwise = (DIRECTIONS[(back + turn) % len(DIRECTIONS)] for turn in range(1, len(DIRECTIONS) + 1))
        return [direction for direction in clockwise if direction in self.exits and direction != self.came_from]


def shows_coin(observation: str) -> bool:
    """Whether the coin lies here."""
    return _COIN in observation
