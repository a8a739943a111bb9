"""Layout keys: what must not be shared between splits, computed before a game is generated.

Upstream draws the map first and from a seed of its own, so its map can be drawn alone in well under a millisecond.
"""

from collections.abc import Mapping

from numpy.random import RandomState
from textworld.generator import make_map

from env_server.environment import KnobValue
from env_server.environments.textworld_quests import plan_quest

# In upstream's order, which the draws depend on.
_DIRECTIONS = ("north", "south", "east", "west")
_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}

_SMALLEST_SPLIT_CHAIN = 4


def layout_key(family: str, parameters: Mapping[str, KnobValue], seeds: Mapping[str, int]) -> str:
    """The key of the map that these seeds give; empty where maps of different splits may coincide.

    Empty for cooking (splits differ by foods and preparations), for simple (one house) and for coin collector chains
    of fewer than four rooms (there are not enough different ones).
    """
    match family:
        case "coin_collector":
            return _coin_chain(int(parameters["level"]), seeds["map"])
        case "treasure_hunter":
            return _treasure_map(int(parameters["level"]), seeds["map"])
        case "quest":
            length, num_rooms = int(parameters["length"]), int(parameters["rooms"])
            return plan_quest(length=length, num_rooms=num_rooms, seeds=seeds).layout
        case _:
            return ""


def _coin_chain(level: int, seed: int) -> str:
    """Directions from start to coin, so not even a solution of one split is one of another."""
    num_rooms = (level - 1) % 100 + 1
    if num_rooms < _SMALLEST_SPLIT_CHAIN:
        return ""
    rng = RandomState(seed)
    steps: list[str] = []
    for _ in range(num_rooms - 1):
        came_from = _OPPOSITE[steps[-1]] if steps else None
        steps.append(str(rng.choice([direction for direction in _DIRECTIONS if direction != came_from])))
    return " ".join(steps)


def _treasure_map(level: int, seed: int) -> str:
    """The corridors on the grid."""
    num_rooms, door_states = ((5, None), (10, ["open"]), (20, ["open"]))[(level - 1) // 10]
    graph = make_map(n_rooms=num_rooms, rng=RandomState(seed), possible_door_states=door_states)
    corridors = sorted(sorted((int(x), int(y)) for x, y in edge) for edge in graph.edges)
    left = min(x for edge in corridors for x, _ in edge)
    bottom = min(y for edge in corridors for _, y in edge)
    return " ".join(f"{a - left},{b - bottom}-{c - left},{d - bottom}" for (a, b), (c, d) in corridors)
