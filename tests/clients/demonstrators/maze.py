"""A corridor with a dead end beside each room, played as coin_collector plays."""

from __future__ import annotations

from clients.demonstrators.rooms import OPPOSITE
from clients.policies.base import TextAction, TextPlayer
from longturn.records import StepResult

REFUSED = "You can't go that way."


class Maze:
    """Rooms by name; exits lead to rooms; the coin lies in one."""

    def __init__(self, passages: dict[tuple[str, str], str], *, start: str, coin: str) -> None:
        self._exits: dict[str, dict[str, str]] = {}
        for (room, direction), other in passages.items():
            self._exits.setdefault(room, {})[direction] = other
            self._exits.setdefault(other, {})[OPPOSITE[direction]] = room
        self.room = start
        self._coin = coin

    def look(self) -> str:
        exits = " ".join(f"There is an exit to the {direction}." for direction in sorted(self._exits[self.room]))
        coin = "\n\nThere is a coin on the floor." if self.room == self._coin else ""
        return f"-= {self.room} =-\nYou find yourself in a {self.room}.\n\n{exits}{coin}"

    def go(self, action: str) -> str:
        other = self._exits[self.room].get(action.removeprefix("go "))
        if other is None:
            return REFUSED
        self.room = other
        return self.look()


def junctions(num_rooms: int) -> Maze:
    """A chain towards the north; every room has a dead end in the west, which comes first clockwise."""
    passages = {(f"Hall {index}", "north"): f"Hall {index + 1}" for index in range(num_rooms - 1)}
    passages |= {(f"Hall {index}", "west"): f"Closet {index}" for index in range(num_rooms)}
    return Maze(passages, start="Hall 0", coin=f"Hall {num_rooms - 1}")


async def walk(player: TextPlayer, maze: Maze, *, num_turns: int) -> list[tuple[str, TextAction]]:
    """What the player saw and did, until it takes the coin or the turns are used up."""
    observation, turns = maze.look(), list[tuple[str, TextAction]]()
    for _ in range(num_turns):
        action = await player.act(StepResult(observation=observation))
        turns.append((observation, action))
        if action.action == "take coin":
            return turns
        observation = maze.go(action.action)
    return turns
