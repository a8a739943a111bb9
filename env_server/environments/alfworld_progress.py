"""How much of an ALFWorld goal is done: a privileged signal, known in every state."""

from collections.abc import Sequence

from env_server.environments.alfworld_goals import GoalPart, Held, Lit, Placed
from env_server.environments.alfworld_world import ABILITY_OF, Thing, World


class Progress:
    """Counts milestones: every wanted thing taken, brought into its state, and put down where it belongs."""

    def __init__(self, goal: Sequence[GoalPart], world: World) -> None:
        self._goal = goal
        self._total = sum(_num_milestones(part) for part in goal)
        self._first = min(self._total - 1, self._num_done(world))

    def of(self, world: World) -> float:
        """Share of the milestones that were open at the start and are reached, in [0, 1); 1 is kept for the goal."""
        done = self._num_done(world) - self._first
        return min(0.99, max(0.0, done / (self._total - self._first)))

    def _num_done(self, world: World) -> int:
        return sum(_num_done(part, world) for part in self._goal)


def _num_milestones(part: GoalPart) -> int:
    match part:
        case Placed():
            return part.count * (3 if part.state else 2)
        case Lit():
            return 1
        case Held():
            return 1


def _num_done(part: GoalPart, world: World) -> int:
    match part:
        case Placed():
            return _num_placed(part, world)
        case Lit():
            return int(
                any(thing.type == part.object_type and "toggled" in thing.traits for thing in world.things.values())
            )
        case Held():
            return int(world.held is not None and world.things[world.held].type == part.object_type)


def _num_placed(part: Placed, world: World) -> int:
    wanted = [
        (name, thing)
        for name, thing in world.things.items()
        if thing.type == part.object_type and (not part.state or ABILITY_OF[part.state] in thing.traits)
    ]
    targets = [name for name, place in world.receptacles.items() if place.type == part.receptacle_type]
    full = 3 if part.state else 2
    best = 0
    for target in targets or [""]:
        in_place = [name for name, thing in wanted if thing.receptacle == target and _is_ready(part, thing)]
        others = [
            int(name == world.held) + int(bool(part.state) and _is_ready(part, thing))
            for name, thing in wanted
            if name not in in_place
        ]
        count = min(part.count, len(in_place))
        best = max(best, count * full + sum(sorted(others, reverse=True)[: part.count - count]))
    return best


def _is_ready(part: Placed, thing: Thing) -> bool:
    return not part.state or part.state in thing.traits
