"""What can be read from a room's text, and from the moves so far, without a map."""

from __future__ import annotations

import re
from dataclasses import dataclass

DIRECTIONS = ("north", "east", "south", "west")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}

_DIRECTION = re.compile(rf"\b({'|'.join(DIRECTIONS)})\b")
_ROOM_TITLE = "=-"
_COIN = "coin on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A stay in a room."""

    exits: tuple[str, ...] = ()
    came_from: str | None = None
    """Direction of the room before; None in the first one."""
    entry: str | None = None
    """Where it was entered from before the dead end that the walk came out of just now; otherwise `came_from`."""
    is_after_dead_end: bool = False
    """Whether the room before was a dead end."""

    @property
    def is_dead_end(self) -> bool:
        """Whether the only exit is the way it came."""
        return len(self.exits) == 1 and self.came_from is not None

    def ahead(self) -> list[str]:
        """The exits other than the one it came through, clockwise from there."""
        back = DIRECTIONS.index(self.came_from) if self.came_from else len(DIRECTIONS) - 1
        clockwise = (DIRECTIONS[(back + turn) % len(DIRECTIONS)] for turn in range(1, len(DIRECTIONS) + 1))
        return [direction for direction in clockwise if direction in self.exits and direction != self.came_from]


class Walk:
    """The rooms and moves of an episode so far."""

    def __init__(self) -> None:
        self._rooms = [Room()]
        self._moves: list[str] = []

    @property
    def here(self) -> Room:
        """The newest room; one without exits before the first was read."""
        return self._rooms[-1]

    @property
    def before(self) -> Room:
        """The room before; one without exits if there is none."""
        return self._rooms[-2] if len(self._rooms) > 1 else Room()

    def read(self, observation: str) -> bool:
        """Take in an observation; True if it shows a new room. After a refused move it shows none."""
        is_same_room = len(self._rooms) > len(self._moves) + 1
        if _ROOM_TITLE not in observation or is_same_room:
            return False
        _, _, text = observation.partition(_ROOM_TITLE)
        self._rooms.append(self._enter(tuple(dict.fromkeys(_DIRECTION.findall(text)))))
        return True

    def move(self, direction: str) -> None:
        """Note a move that will be made; one that the room has no exit for is refused and leads nowhere."""
        if direction in self.here.exits:
            self._moves.append(direction)

    def _enter(self, exits: tuple[str, ...]) -> Room:
        came_from = OPPOSITE[self._moves[-1]] if self._moves else None
        is_after_dead_end = self.here.is_dead_end
        entry = self.before.entry if is_after_dead_end else came_from
        return Room(exits=exits, came_from=came_from, entry=entry, is_after_dead_end=is_after_dead_end)


NOWHERE = "start"
"""Said in notes of the first room, which was entered from no direction."""


def shows_coin(observation: str) -> bool:
    """Whether the coin lies here."""
    return _COIN in observation


def check_shares(**shares: float) -> None:
    """Raise ValueError naming a share that lies outside [0, 1]."""
    for name, value in shares.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], got {value}")
