"""ScienceWorld's simulators in one Java machine, each as if it were alone there.

Left alone, no two episodes of ScienceWorld are equal, for three reasons, and each is taken away here:

- Sets of objects are walked in the order of the objects' identity hashes, which the machine draws. It is told to give
  all objects the same one, so that the order is that in which they came.
- All simulators draw from one random number generator, and number their objects by one counter. Both are put back
  where a simulator left them before it goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from env_server.environment import EnvironmentBrokenError
from env_server.environments.java_package import SCIENCEWORLD
from env_server.environments.java_runtime import JavaRuntime

_OPTIONS = (
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "--add-opens=java.base/java.util=ALL-UNNAMED",  # the generator's state is private
)
_SCRAMBLE = 0x5DEECE66D
"""`java.util.Random.setSeed` mixes this into what it is given."""
_REMEMBERED_PATHS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a simulator says to a command."""

    text: str
    score: int
    """-100 to 100."""
    is_over: bool
    """The task is done, or can be done no more."""


class SimulatorHost:
    """A Java machine with any number of simulators, called from one thread."""

    def __init__(self) -> None:
        """Start the machine. Raises `EnvironmentBrokenError` if something that it needs is missing."""
        self.runtime = JavaRuntime(SCIENCEWORLD.jar, _OPTIONS)
        packages = self.runtime.packages
        with self.runtime.calling():
            self._interface: Any = packages.scienceworld.runtime.pythonapi.PythonInterface
            self._join: Any = packages.java.lang.String.join
            self._random: Any = getattr(getattr(packages.scala.util, "Random$"), "MODULE$").self()
            self._state: Any = packages.java.lang.Class.forName("java.util.Random").getDeclaredField("seed")
            self._state.setAccessible(True)
            self._counter: Any = getattr(getattr(packages.util, "UniqueIdentifier$"), "MODULE$")
        self._set_count: Any = getattr(self._counter, "count_$eq")
        self._last: Simulator | None = None

    def open(self, task: str, variation: int, simplifications: str) -> "Simulator":
        """A simulator at the beginning of an episode; raise `EnvironmentBrokenError` if it cannot be loaded."""
        simulator = self._new()
        simulator.load(task, variation, simplifications)
        return simulator

    def gold_path(self, task: str, variation: int, simplifications: str) -> tuple[str, ...]:
        """The package's own solution, made by playing: half a second to ten seconds."""
        simulator = self._new()
        simulator.load(task, variation, simplifications, with_gold_path=True)
        path = simulator.ask_list("getGoldActionSequence")
        simulator.close()
        return path

    @contextmanager
    def turn_of(self, simulator: "Simulator") -> Iterator[None]:
        """Calls to a simulator belong in here: it finds the shared globals as it left them."""
        with self.runtime.calling():
            if self._last is not simulator:
                self._set_aside()
                self._take_up(simulator)
            yield

    def leave(self, simulator: "Simulator") -> None:
        """The simulator will not be called again."""
        if self._last is simulator:
            self._last = None
        self.runtime.release(simulator.interface)

    def lines(self, strings: Any) -> tuple[str, ...]:
        """A list of Java's strings, fetched in one call."""
        text = str(self._join("\n", strings))
        return tuple(text.split("\n")) if text else ()

    def _new(self) -> "Simulator":
        with self.runtime.calling():
            self._set_aside()  # making one draws random numbers, too
            return Simulator(self, self._interface())

    def _set_aside(self) -> None:
        if self._last is not None:
            self._last.globals = (self._state.get(self._random), self._counter.count())
            self._last = None

    def _take_up(self, simulator: "Simulator") -> None:
        self._last = simulator
        if simulator.globals is not None:
            state, count = simulator.globals
            self._random.setSeed(state ^ _SCRAMBLE)
            self._set_count(count)


class Simulator:
    """One episode's simulator. It knows neither a step limit nor rewards."""

    def __init__(self, host: SimulatorHost, interface: Any) -> None:
        self.interface = interface
        self.globals: tuple[int, int] | None = None
        """The random numbers' state and the counter where it left them last; none before the first load, which sets
        both."""
        self._host = host

    def load(self, task: str, variation: int, simplifications: str, *, with_gold_path: bool = False) -> None:
        """Begin an episode; raise `EnvironmentBrokenError` if it cannot be loaded."""
        with self._host.turn_of(self):
            message = str(self.interface.load(task, variation, simplifications, with_gold_path))
        if message:
            raise EnvironmentBrokenError(f"ScienceWorld does not load {task}/{variation}: {message}")

    def step(self, command: str) -> Reply:
        """Apply one command."""
        with self._host.turn_of(self):
            return Reply(
                text=self.interface.step(command),
                score=round(100 * self.interface.getScore()),
                is_over=self.interface.getCompleted(),
            )

    def ask(self, question: str) -> str:
        """The text that a method without arguments gives, such as `getTaskDescription`."""
        with self._host.turn_of(self):
            return str(getattr(self.interface, question)())

    def ask_list(self, question: str) -> tuple[str, ...]:
        """The same for a list."""
        with self._host.turn_of(self):
            return self._host.lines(getattr(self.interface, question)())

    def close(self) -> None:
        """Free it."""
        self._host.leave(self)


@cache
def shared_host() -> SimulatorHost:
    """The one host of this process."""
    return SimulatorHost()


@lru_cache(maxsize=_REMEMBERED_PATHS)
def gold_path(task: str, variation: int, simplifications: str) -> tuple[str, ...]:
    """`SimulatorHost.gold_path`, remembered."""
    return shared_host().gold_path(task, variation, simplifications)
