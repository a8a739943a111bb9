"""A multi-armed bandit: find the best arm within so many pulls, then choose it.

The task id fixes arms and chances; the episode's seed fixes what each pull pays. With symbolic names the arms are
trades, as in RAGEN: steady ones pay 0.1 always, the risky one pays 1 with chance 0.25 and is the best. Splits then
share no name.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from env_server.environment import KnobValue
from env_server.environments.generated_tasks import GeneratedTask, Generator, choice, fraction, whole
from env_server.environments.puzzle import (
    ADMISSIBLE_ACTIONS,
    InvalidActionError,
    Puzzle,
    PuzzleEnvironment,
    puzzle_spec,
)

STEADY_PAY = 0.1
RISKY_CHANCE = 0.25
MAX_SYMBOLIC_ARMS = 5

_PLAIN_NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty")
_STEADY_NAMES = {
    "train": ("baker", "tailor", "librarian", "plumber", "cook", "gardener", "dentist", "carpenter", "cleaner"),
    "valid": ("nurse", "optician", "locksmith", "typist"),
    "test": ("teacher", "pharmacist", "electrician", "mason"),
}
_RISKY_NAMES = {
    "train": ("gambler", "inventor", "explorer", "novelist", "smuggler", "actor", "prospector", "racer"),
    "valid": ("diver", "speculator", "adventurer"),
    "test": ("stuntman", "pirate", "songwriter"),
}
T = TypeVar("T")

_FORMAT = "Not an action, or no such arm. Action: pull NAME, or choose NAME."


@dataclass(frozen=True, slots=True)
class Arm:
    """Pays `pay` with this chance, else nothing."""

    name: str
    chance: float
    pay: float


def _mismatch(values: Mapping[str, KnobValue]) -> str:
    is_too_many = values["names"] == "symbolic" and int(values["arms"]) > MAX_SYMBOLIC_ARMS
    return f"symbolic names are there for at most {MAX_SYMBOLIC_ARMS} arms" if is_too_many else ""


class BanditEnvironment(PuzzleEnvironment):
    """One set of arms at a time."""

    generator = Generator(
        name="bandit",
        version=1,
        parameters=(
            whole("arms", 4, 2, 10, "number of arms"),
            whole("pulls", 40, 0, 200, "pulls before the choice"),
            fraction("gap", 0.3, 0.1, 0.5, "how far the second best chance is behind the best, with plain names"),
            choice("names", ("plain", "symbolic"), "whether a name tells what its arm is like"),
        ),
        listed={
            "arms": (4, 2, 10),
            "pulls": (40, 0, 100),
            "gap": (0.3, 0.1),
            "names": ("plain", "symbolic"),
        },
        mismatch=_mismatch,
    )
    spec = puzzle_spec(
        generator,
        action_format="pull NAME to try an arm; choose NAME to end with the arm that pays best.",
        max_turns=220,
        knobs=(ADMISSIBLE_ACTIONS,),
        description="Find the arm that pays best on average and choose it.",
        has_progress=False,
    )

    def begin(self, task: GeneratedTask, seed: int, knobs: Mapping[str, KnobValue]) -> Puzzle:
        num_arms, gap = task.integer("arms"), float(knobs["gap"])
        if knobs["names"] == "symbolic":
            arms = symbolic_arms(task.random(), num_arms=num_arms, split=task.split)
        else:
            arms = task.draw(lambda rng: plain_arms(rng, num_arms=num_arms, gap=gap), layout=_names)
        return BanditGame(arms, task.chance(seed), num_pulls=task.integer("pulls"))


def plain_arms(rng: random.Random, *, num_arms: int, gap: float) -> tuple[Arm, ...]:
    """Arms that pay 1 with chances in hundredths, the second best at least `gap` behind the best."""
    names = rng.sample(_PLAIN_NAMES, num_arms)
    best = rng.randint(60, 90)
    others = [rng.randint(5, best - round(100 * gap)) for _ in range(num_arms - 1)]
    chances = _shuffled(rng, [best, *others])
    return tuple(Arm(name, chance / 100, 1.0) for name, chance in zip(names, chances, strict=True))


def symbolic_arms(rng: random.Random, *, num_arms: int, split: str) -> tuple[Arm, ...]:
    """Steady arms and a risky one, named by trades of the split."""
    steady = [Arm(name, 1.0, STEADY_PAY) for name in rng.sample(_STEADY_NAMES[split], num_arms - 1)]
    return tuple(_shuffled(rng, [Arm(rng.choice(_RISKY_NAMES[split]), RISKY_CHANCE, 1.0), *steady]))


class BanditGame(Puzzle):
    """Arms in play."""

    def __init__(self, arms: tuple[Arm, ...], chance: random.Random, *, num_pulls: int) -> None:
        self._arms = {arm.name: arm for arm in arms}
        self._best = max(arms, key=lambda arm: arm.chance * arm.pay).name
        self._chance = chance
        self._num_pulls, self._num_left = num_pulls, num_pulls
        self.rules = (
            f"Bandit: find the arm that pays best on average and choose it. Arms: {', '.join(self._arms)}.\n"
            f"You may pull an arm {num_pulls} times in all to see what it pays. One choice ends the game.\n"
            "Action: pull NAME, or choose NAME."
        )

    def act(self, action: str) -> str:
        verb, _, name = " ".join(action.strip(" \t\r\n.").lower().split()).partition(" ")
        if verb not in ("pull", "choose") or name not in self._arms:
            raise InvalidActionError(_FORMAT)
        return self._pull(self._arms[name]) if verb == "pull" else self._choose(name)

    def view(self) -> str:
        return f"Pulls left: {self._num_left}."

    def state(self) -> str:
        return f"{self._num_left} {self.is_won} {self.is_lost} {list(self._arms.values())}"

    def admissible_actions(self) -> tuple[str, ...]:
        if self.is_won or self.is_lost:
            return ()
        verbs = ("pull", "choose") if self._num_left else ("choose",)
        return tuple(f"{verb} {name}" for verb in verbs for name in self._arms)

    def expert_action(self) -> str:
        """Each arm in turn until no pull is left, then the best one, which an expert knows."""
        names = list(self._arms)
        if self._num_left:
            return f"pull {names[(self._num_pulls - self._num_left) % len(names)]}"
        return f"choose {self._best}"

    def _pull(self, arm: Arm) -> str:
        if not self._num_left:
            raise InvalidActionError("No pulls are left. Action: choose NAME.")
        self._num_left -= 1
        pay = arm.pay if self._chance.random() < arm.chance else 0.0
        return f"{arm.name} pays {pay:g}."

    def _choose(self, name: str) -> str:
        self.is_won = name == self._best
        self.is_lost = not self.is_won
        self.score = float(self.is_won)
        return f"{name} is the best arm. You win." if self.is_won else f"{self._best} is the best arm. You lose."


def _names(arms: tuple[Arm, ...]) -> str:
    return " ".join(arm.name for arm in arms)


def _shuffled(rng: random.Random, items: list[T]) -> list[T]:
    return rng.sample(items, len(items))
