"""The expert's next command and the distance to the goal, followed from the rooms and commands of an episode."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Exits = Mapping[str, Mapping[str, str]]
"""Room to direction to room."""

# They change nothing in the world, so the walkthrough stands where it stood.
_LOOKING = frozenset({"look", "inventory", "examine", "wait", "listen", "smell", "help", "goal"})
_VERBS = {"get": "take", "x": "examine", "l": "look", "i": "inventory", "z": "wait", "walk": "go", "run": "go"}
_DIRECTIONS = {"n": "north", "s": "south", "e": "east", "w": "west"}


class Guide(Protocol):
    """Follows one episode from its start."""

    def follow(self, command: str, room: str | None) -> None:
        """A turn has passed: the command given and the room the player is in after it."""
        ...

    def next_command(self) -> str | None:
        """The expert's next command; None where it is not known."""
        ...

    def progress(self) -> float | None:
        """Share of the way that is behind the player, in [0, 1]; None where it is not known."""
        ...


class RoomGuide:
    """One thing to do in one room: exact wherever the player wanders."""

    def __init__(self, *, exits: Exits, start: str, target: str, last_command: str) -> None:
        self._last_command = last_command
        self._way = _ways_to(exits, target)
        self._room = start
        self._longest = 1 + max(distance for distance, _ in self._way.values())

    def follow(self, command: str, room: str | None) -> None:
        if room is not None:
            self._room = room

    def next_command(self) -> str | None:
        direction = self._way[self._room][1]
        return self._last_command if direction is None else f"go {direction}"

    def progress(self) -> float | None:
        """1 - d / (the largest d of the map), d being commands to the goal."""
        return 1.0 - (1 + self._way[self._room][0]) / self._longest


class WalkthroughGuide:
    """A walkthrough and the way back to it: knows the next command until the world is changed off the walkthrough.

    Moves off the walkthrough are remembered and undone; commands that only look are free; after any other command the
    rest is not known and both answers are None.
    """

    def __init__(self, *, walkthrough: Sequence[str], exits: Exits, start: str) -> None:
        self._remaining = list(walkthrough)
        self._length = max(1, len(walkthrough))
        self._exits = exits
        self._room = start
        self._detour: list[str] = []
        self._is_lost = not walkthrough

    def follow(self, command: str, room: str | None) -> None:
        came_from, self._room = self._room, room or self._room
        plain = _plain_form(command)
        if not self._detour and self._advance(plain):
            return
        if self._room != came_from:
            self._note_move(came_from)
        elif plain.split()[0] not in _LOOKING and not plain.startswith("go "):
            self._is_lost = True

    def next_command(self) -> str | None:
        if self._is_lost or not self._remaining:
            return None
        return self._detour[-1] if self._detour else self._remaining[0]

    def progress(self) -> float | None:
        """1 - (commands left, the way back included) / (length of the walkthrough), at least 0."""
        if self._is_lost:
            return None
        return max(0.0, 1.0 - (len(self._remaining) + len(self._detour)) / self._length)

    def _advance(self, command: str) -> bool:
        """Step along the walkthrough, over commands that only look."""
        for position, expected in enumerate(self._remaining):
            if command == expected.lower():
                del self._remaining[: position + 1]
                return True
            if expected.split()[0] not in _LOOKING:
                return False
        return False

    def _note_move(self, came_from: str) -> None:
        if self._detour and self._exits[came_from].get(self._detour[-1].removeprefix("go ")) == self._room:
            self._detour.pop()
            return
        back = [f"go {direction}" for direction, room in self._exits[self._room].items() if room == came_from]
        if back:
            self._detour.append(back[0])
        else:
            self._is_lost = True


def _ways_to(exits: Exits, target: str) -> dict[str, tuple[int, str | None]]:
    """Room to (moves to the target, direction of the first)."""
    ways: dict[str, tuple[int, str | None]] = {target: (0, None)}
    frontier = [target]
    while frontier:
        near = frontier.pop(0)
        for room, doors in exits.items():
            direction = next((direction for direction, other in doors.items() if other == near), None)
            if direction is not None and room not in ways:
                ways[room] = (ways[near][0] + 1, direction)
                frontier.append(room)
    return ways


def _plain_form(command: str) -> str:
    """The command as walkthroughs spell it."""
    words = command.lower().replace("pick up ", "take ", 1).split()
    words[0] = _VERBS.get(words[0], words[0])
    if len(words) == 1 and _DIRECTIONS.get(words[0], words[0]) in _DIRECTIONS.values():
        words.insert(0, "go")
    if words[0] == "go":
        words[1:] = [_DIRECTIONS.get(word, word) for word in words[1:]]
    return " ".join(words)
