"""Who knows what to do next: the walkthrough with a planner behind it, and a handcoded explorer.

Both say acts in the names of the world (`alfworld_planner.Act`), or a command as it stands in a walkthrough.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from env_server.environments.alfworld_goals import GoalPart, Placed
from env_server.environments.alfworld_names import IDLE_VERBS
from env_server.environments.alfworld_planner import Act, Planner
from env_server.environments.alfworld_world import World

_REPLAN_NODES = 200


class Expert(Protocol):
    """Follows one episode from its start."""

    def follow(self, command: str, act: Act) -> None:
        """A valid command was given, which did `act`."""
        ...

    def next_act(self) -> Act | str | None:
        """What to do now: an act, a command, or None where nothing is known to lead to the goal."""
        ...


class WalkthroughExpert:
    """The game's walkthrough while the episode keeps to it, then a short way from wherever the episode has got to."""

    def __init__(self, walkthrough: Sequence[str], goal: Sequence[GoalPart] | None, world: Callable[[], World]) -> None:
        self._plan: list[Act | str] = list(walkthrough)
        self._goal = goal
        self._world = world
        self._is_planned = bool(walkthrough)

    def follow(self, command: str, act: Act) -> None:
        if self._plan and self._plan[0] in (command, act):
            del self._plan[0]
        elif act[0] not in IDLE_VERBS:
            self._plan, self._is_planned = [], False

    def next_act(self) -> Act | str | None:
        if not self._is_planned and self._goal is not None:
            self._plan = list(Planner(self._goal, self._world(), max_nodes=_REPLAN_NODES).plan() or ())
            self._is_planned = True
        return self._plan[0] if self._plan else None


class Explorer:
    """Knows only what it has seen: looks into one place after another, likely ones first, and acts on what it found."""

    def __init__(self, goal: Sequence[GoalPart] | None, world: Callable[[], World]) -> None:
        self._goal = goal
        self._world = world
        self._seen: set[str] = set()

    def follow(self, command: str, act: Act) -> None:
        del command
        world = self._world()
        here = {name for name in act[1:] if name in world.receptacles}
        self._seen |= {
            name
            for name in here
            if world.receptacles[name].location == world.location and not world.receptacles[name].is_closed
        }

    def next_act(self) -> Act | str | None:
        if self._goal is None:
            return None
        world = self._world()
        known = self._known(world)
        for goal in self._within_reach(known):
            plan = Planner(goal, known, max_nodes=_REPLAN_NODES).plan()
            if plan:
                return plan[0]
        return self._explore(world)

    def _known(self, world: World) -> World:
        things = {
            name: thing
            for name, thing in world.things.items()
            if name == world.held or thing.receptacle in self._seen
        }  # fmt: skip
        return replace(world, things=things)

    def _within_reach(self, known: World) -> list[list[GoalPart]]:
        """The whole goal, then each placing alone: what can be done now is done before more is looked for."""
        goal = list(self._goal or ())
        placed = [part for part in goal if isinstance(part, Placed)]
        return [goal, *([part] for part in placed)]

    def _explore(self, world: World) -> Act | None:
        for name, place in world.receptacles.items():
            if place.location == world.location and name not in self._seen:
                # There is no going to where one stands already.
                return ("open" if place.is_closed else "examine", name)
        unseen = [name for name in world.receptacles if name not in self._seen]
        if not unseen:
            return None
        wanted = {part.object_type for part in self._goal or ()}
        return ("go", max(unseen, key=lambda name: self._likelihood(world, name, wanted)))

    def _likelihood(self, world: World, name: str, wanted: set[str]) -> int:
        """How many of the wanted types may lie there."""
        kind = world.receptacles[name].type
        return sum((kind, thing) in world.can_contain for thing in wanted)
