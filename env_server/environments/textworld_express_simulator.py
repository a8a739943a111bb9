"""TextWorldExpress's games in one Java machine."""

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from env_server.environment import EnvironmentBrokenError
from env_server.environments.java_package import TEXTWORLD_EXPRESS
from env_server.environments.java_runtime import JavaRuntime

_REMEMBERED_PATHS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a game says to a command."""

    text: str
    look: str
    inventory: str
    valid_actions: tuple[str, ...]
    score: float
    is_won: bool
    is_lost: bool


class ExpressHost:
    """A Java machine with any number of games, called from one thread."""

    def __init__(self) -> None:
        """Start the machine. Raises `EnvironmentBrokenError` if something that it needs is missing."""
        self.runtime = JavaRuntime(TEXTWORLD_EXPRESS.jar)
        packages = self.runtime.packages
        with self.runtime.calling():
            self._interface: Any = packages.textworldexpress.runtime.PythonInterface
            self._join: Any = packages.java.lang.String.join
            sorting = getattr(packages.textworldexpress.data, "SortingProblemGenerator$")
            self._problems: Any = getattr(sorting, "MODULE$")
            problem = packages.java.lang.Class.forName("textworldexpress.preprocessing.SortingProblem")
            self._no_arguments: Any = self.runtime.empty_array(packages.java.lang.Object)
            self._new_items: Any = problem.getDeclaredMethod(
                "getOrderedItems", self.runtime.empty_array(packages.java.lang.Class)
            )
            self._items: Any = problem.getDeclaredField("orderedItems")
            self._new_items.setAccessible(True)
            self._items.setAccessible(True)

    def open(self, game: str, parameters: str) -> Any:
        """An interface in which this kind of game is loaded."""
        with self.runtime.calling():
            interface = self._interface()
            message = str(interface.load(game, parameters))
        if message:
            self.runtime.release(interface)
            raise EnvironmentBrokenError(f"TextWorldExpress does not load {game} with {parameters!r}: {message}")
        return interface

    def generate(self, interface: Any, game: str, seed: int, split: str, *, with_gold_path: bool) -> str:
        """Make the game of this seed; what it says first."""
        with self.runtime.calling():
            if game == "sorting":
                self._renew_items(seed, split)
            return str(interface.generateNewGameJSON(seed, split, with_gold_path))

    def _renew_items(self, seed: int, split: str) -> None:
        """Give the problem new things to sort.

        The package makes them once for all games of a problem, so that a game takes them out of those before it.
        """
        problem = self._problems.getProblem(seed, split).get()
        self._items.set(problem, self._new_items.invoke(problem, self._no_arguments))

    def gold_path(self, game: str, parameters: str, seed: int, split: str) -> tuple[str, ...]:
        """The package's own solution."""
        interface = self.open(game, parameters)
        self.generate(interface, game, seed, split, with_gold_path=True)
        with self.runtime.calling():
            text = str(self._join("\n", interface.getGoldActionSequence()))
        self.runtime.release(interface)
        return tuple(text.split("\n")) if text else ()


class Game:
    """One game in play."""

    def __init__(self, host: ExpressHost, game: str, parameters: str) -> None:
        self._host = host
        self._name = game
        self._interface = host.open(game, parameters)
        self._step: Any = self._interface.stepJSON

    def start(self, seed: int, split: str) -> tuple[str, Reply]:
        """Make the game of this seed; what is to be done, and what is seen first."""
        reply = _parsed(self._host.generate(self._interface, self._name, seed, split, with_gold_path=False))
        with self._host.runtime.calling():
            return str(self._interface.getTaskDescription()), reply

    def step(self, command: str) -> Reply:
        """Apply one command."""
        with self._host.runtime.calling():
            text = self._step(command)
        return _parsed(text)

    def close(self) -> None:
        """Free it."""
        self._host.runtime.release(self._interface)


def _parsed(text: str) -> Reply:
    tree = json.loads(text)
    return Reply(
        text=tree["observation"],
        look=tree["look"],
        inventory=tree["inventory"],
        valid_actions=tuple(sorted(tree["validActions"])),
        score=float(tree["score"]),
        is_won=tree["tasksuccess"],
        is_lost=tree["taskfailure"],
    )


@cache
def shared_host() -> ExpressHost:
    """The one host of this process."""
    return ExpressHost()


@lru_cache(maxsize=_REMEMBERED_PATHS)
def gold_path(game: str, parameters: str, seed: int, split: str) -> tuple[str, ...]:
    """`ExpressHost.gold_path`, remembered."""
    return shared_host().gold_path(game, parameters, seed, split)
