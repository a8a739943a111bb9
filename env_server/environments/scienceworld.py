"""ScienceWorld: thirty kinds of elementary science tasks in a house of ten rooms, by the package's own simulator.

Simulators of one worker share a Java machine. The task id and the knobs fix the episode; the seed changes nothing.

An action is invalid where no simulator is asked (not one line of printable ASCII, too long), or where it knows no such
action, cannot tell which thing is meant, or is answered a question with none of its choices. Where it asks which of
several things is meant, its number is the next action, and nothing else.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from env_server.environment import (
    Determinism,
    EnvironmentSpec,
    KnobError,
    KnobSpec,
    KnobValue,
    TaskInfo,
    Transition,
    switch,
)
from env_server.environments.digests import state_hash
from env_server.environments.episodes import Episode, EpisodicEnvironment
from env_server.environments.gold_path import GoldPath
from env_server.environments.java_package import SCIENCEWORLD
from env_server.environments.scienceworld_tasks import NEEDS_WIRES, SPLITS, Variation, find, listed
from env_server.text import one_line

if TYPE_CHECKING:
    from env_server.environments.scienceworld_simulator import Simulator

MAX_ACTION_CHARS = 200
NOT_READ = f"No known action matches that input. Give one line of at most {MAX_ACTION_CHARS} characters."
_REFUSALS = ("No known action matches that input", "Ambiguous request: Multiple", "ERROR: ")
_ASKS_BACK = "Ambiguous request: Please enter the number"
_TAKES_NO_TIME = frozenset({"look around", "inventory", "task", "help", "objects"})
_EMPTY_RUNS = re.compile(r"\s*\n(?:[ \t]*\n)+")

# Knob: what the package calls it.
_SIMPLIFICATIONS = {
    "teleport": "teleportAction",
    "no_electrical_actions": "noElectricalAction",
    "open_doors": "openDoors",
    "self_watering_flower_pots": "selfWateringFlowerPots",
    "open_containers": "openContainers",
}
_EASY = ("teleport", "no_electrical_actions", "open_doors", "self_watering_flower_pots")


KNOBS = (
    KnobSpec(
        name="preset",
        kind="choice",
        default="easy",
        choices=("easy", "none"),
        description="easy: the package's preset, which the papers use: the simplifications below but open_containers, "
        "and no_electrical_actions only where no electrical action is needed",
    ),
    switch("teleport", "`teleport to ROOM` is an action"),
    switch("no_electrical_actions", "nothing can be connected; not for the tasks that need it"),
    switch("open_doors", "doors are open"),
    switch("self_watering_flower_pots", "plants need no water"),
    switch("open_containers", "containers are open"),
    switch("admissible_actions", "list the valid actions, hundreds of them; ten times the time of a step"),
    switch("look", "extra `look`: the room; under 1 ms a turn"),
    switch("inventory", "extra `inventory`; under 1 ms a turn"),
)


class ScienceWorldEnvironment(EpisodicEnvironment):
    """One task at a time."""

    spec = EnvironmentSpec(
        name="scienceworld",
        version=f"{SCIENCEWORLD.version}+1",
        data_hash=f"scienceworld-{SCIENCEWORLD.version}",
        action_format="One English command, such as: open door to kitchen, go to kitchen, pick up thermometer, "
        "use thermometer on water, focus on water, connect battery anode to blue wire terminal 1, wait.",
        max_turns=100,
        turn_limits={
            "boil": 150,
            "change-the-state-of-matter-of": 150,
            "freeze": 200,
            "grow-fruit": 250,
            "grow-plant": 200,
            "inclined-plane-friction-unnamed-surfaces": 400,
            "melt": 150,
            "mendelian-genetics-known-plant": 300,
            "mendelian-genetics-unknown-plant": 300,
        },
        knobs=KNOBS,
        determinism=Determinism.EXACT,
        is_forkable=True,
        score_min=-100.0,
        score_max=100.0,
        splits=SPLITS,
        has_oracle=True,
        has_progress=True,
        random_success_ceiling=0.05,
        licence="Apache-2.0",
        description="Science tasks in a simulated house. Task ids are TASK/VARIATION; list filters are `task` and "
        "`level` (L0, L1, L2). Success is score 100. Focusing on a wrong thing ends an episode with score -100. Long "
        "tasks have a default turn limit above 100.",
    )

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return len(listed(split, filters or {}))

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return [variation.info for variation in listed(split, filters or {})[max(start, 0) : start + count]]

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return find(task_id).info

    @classmethod
    def warm_up(cls) -> None:
        """See that package and Java are there; the machine starts with the first episode."""
        SCIENCEWORLD.check()

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """Start the task's variation as it stands in the package."""
        variation = find(task_id)
        resolved = self.spec.resolve_knobs(knobs)
        self.close()
        self._episode = episode = _Episode(variation, simplifications(variation.task, resolved), resolved)
        return episode.start()


class _Episode(Episode):
    """A task from its first observation to its end."""

    def __init__(self, variation: Variation, simplifications: str, knobs: Mapping[str, KnobValue]) -> None:
        from env_server.environments.scienceworld_simulator import gold_path, shared_host

        self._knobs = knobs
        self._simulator: Simulator = shared_host().open(variation.task, variation.number, simplifications)
        self._score = 0
        self._is_over = False
        self._is_asked = False
        self._path = GoldPath(
            lambda: gold_path(variation.task, variation.number, simplifications), takes_no_time=_TAKES_NO_TIME
        )

    def start(self) -> Transition:
        task = self._simulator.ask("getTaskDescription").strip()
        return self._transition(f"{task}\n\n{_tidy(self._simulator.ask('freeActionLook'))}")

    def step(self, action: str) -> Transition:
        if self._is_over:
            raise RuntimeError("step after the end of the episode")
        command = one_line(action, max_chars=MAX_ACTION_CHARS)
        if command is None:
            return self._transition(NOT_READ, is_valid=False)
        reply = self._simulator.step(command)
        before, self._score = self._score, reply.score
        # As in the package a negative score is an end too; without a step limit of its own nothing else is.
        self._is_over = reply.is_over or reply.score < 0 or reply.score >= 100
        self._is_asked = reply.text.startswith(_ASKS_BACK)
        is_valid = not reply.text.startswith(_REFUSALS)
        if is_valid:
            self._path.follow(command)
        return self._transition(_tidy(reply.text), reward=self._score - before, is_valid=is_valid)

    def oracle(self) -> str | None:
        """The next command of the package's own solution; None once an action that takes time has left it.

        The first call of a task costs up to ten seconds.
        """
        return None if self._is_over else self._path.next()

    def close(self) -> None:
        self._simulator.close()

    def _transition(self, text: str, *, reward: float = 0.0, is_valid: bool = True) -> Transition:
        return Transition(
            observation=text,
            reward=reward,
            score=self._score,
            success=self._score >= 100,
            is_terminal=self._is_over,
            action_valid=is_valid,
            progress=max(0, self._score) / 100,
            admissible_actions=self._admissible() if self._knobs["admissible_actions"] else None,
            extras=self._extras(),
            state_hash=state_hash(text, self._score, self._is_over),
        )

    def _admissible(self) -> tuple[str, ...]:
        return () if self._is_over else self._simulator.ask_list("getValidActionObjectCombinations")

    def _extras(self) -> dict[str, str]:
        questions = {"look": "freeActionLook", "inventory": "freeActionInventory"}
        return {name: _tidy(self._simulator.ask(ask)) for name, ask in questions.items() if self._knobs[name]}


def simplifications(task: str, knobs: Mapping[str, KnobValue]) -> str:
    """The knobs as the package spells them; `KnobError` where they take away what the task needs."""
    if knobs["no_electrical_actions"] and task in NEEDS_WIRES:
        raise KnobError("no_electrical_actions", f"knob no_electrical_actions is false for {task}, which needs them")
    chosen = {name for name in _SIMPLIFICATIONS if knobs[name]}
    if knobs["preset"] == "easy":
        chosen |= {name for name in _EASY if name != "no_electrical_actions" or task not in NEEDS_WIRES}
    return ",".join(name for knob, name in _SIMPLIFICATIONS.items() if knob in chosen)


def _tidy(text: str) -> str:
    return _EMPTY_RUNS.sub("\n\n", text).strip()
