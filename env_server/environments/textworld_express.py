"""TextWorldExpress: eight small kinds of text games, by the package's own simulator.

Games of one worker share a Java machine. The task id alone fixes the game; the episode's seed changes nothing.
An action is invalid where the game is not asked (not one line of printable ASCII, too long) or does not know it.
"""

from collections.abc import Mapping, Sequence

from env_server.environment import (
    Determinism,
    EnvironmentSpec,
    KnobValue,
    TaskInfo,
    Transition,
    switch,
)
from env_server.environments.digests import state_hash
from env_server.environments.episodes import Episode, EpisodicEnvironment
from env_server.environments.gold_path import GoldPath
from env_server.environments.java_package import TEXTWORLD_EXPRESS
from env_server.environments.textworld_express_tasks import GAMES, SPLITS, ExpressTask, find, num_tasks, page
from env_server.text import one_line

MAX_ACTION_CHARS = 200
NOT_READ = f"Unknown action: give one line of at most {MAX_ACTION_CHARS} characters."
_REFUSAL = "Unknown action"
_TAKES_NO_TIME = frozenset({"look around", "inventory", "task"})


KNOBS = (
    switch("admissible_actions", "list the valid actions; they cost nothing"),
    switch("look", "extra `look`: the room"),
    switch("inventory", "extra `inventory`"),
)


class TextWorldExpressEnvironment(EpisodicEnvironment):
    """One game at a time."""

    spec = EnvironmentSpec(
        name="textworld_express",
        version=f"{TEXTWORLD_EXPRESS.version}+1",
        data_hash=f"textworld-express-{TEXTWORLD_EXPRESS.version}",
        action_format="One English command, such as: look around, open door to north, move north, take coin, "
        "put coin in box.",
        max_turns=100,
        turn_limits={"cookingworld": 150},
        knobs=KNOBS,
        determinism=Determinism.EXACT,
        is_forkable=True,
        score_min=-1.0,
        score_max=1.0,
        splits=SPLITS,
        has_oracle=True,
        has_progress=True,
        random_success_ceiling=0.3,
        licence="Apache-2.0",
        description="Small text games. Task ids are GAME/PARAMETERS/SPLIT/INDEX; list filters are `game` "
        f"({', '.join(GAMES)}) and the game's parameters. A lost game has score -1.",
    )

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return page(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return find(task_id).info

    @classmethod
    def warm_up(cls) -> None:
        """See that package and Java are there; the machine starts with the first episode."""
        TEXTWORLD_EXPRESS.check()

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """Start the task's game."""
        task = find(task_id)
        resolved = self.spec.resolve_knobs(knobs)
        self.close()
        self._episode = episode = _Episode(task, resolved)
        return episode.start()


class _Episode(Episode):
    """A game from its first observation to its end."""

    def __init__(self, task: ExpressTask, knobs: Mapping[str, KnobValue]) -> None:
        from env_server.environments.textworld_express_simulator import Game, Reply, gold_path, shared_host

        parameters = task.package_parameters
        self._task = task
        self._knobs = knobs
        self._game = Game(shared_host(), task.game, parameters)
        self._reply: Reply | None = None
        self._path = GoldPath(
            lambda: gold_path(task.game, parameters, task.seed, task.split), takes_no_time=_TAKES_NO_TIME
        )

    def start(self) -> Transition:
        description, self._reply = self._game.start(self._task.seed, self._task.split)
        return self._transition(f"{description.strip()}\n\n{self._reply.text.strip()}")

    def step(self, action: str) -> Transition:
        assert self._reply is not None
        if self._is_over:
            raise RuntimeError("step after the end of the game")
        line = one_line(action, max_chars=MAX_ACTION_CHARS)
        if line is None:
            return self._transition(NOT_READ, is_valid=False)
        command = _spelled(line, self._reply.valid_actions)
        before = self._reply.score
        self._reply = self._game.step(command)
        is_valid = not self._reply.text.startswith(_REFUSAL)
        if is_valid:
            self._path.follow(command)
        return self._transition(self._reply.text.strip(), reward=self._reply.score - before, is_valid=is_valid)

    def oracle(self) -> str | None:
        """The next command of the package's own solution; None once an action that takes time has left it."""
        return None if self._is_over else self._path.next()

    def close(self) -> None:
        self._game.close()

    @property
    def _is_over(self) -> bool:
        reply = self._reply
        return reply is not None and (reply.is_won or reply.is_lost)

    def _transition(self, text: str, *, reward: float = 0.0, is_valid: bool = True) -> Transition:
        reply = self._reply
        assert reply is not None
        extras = {"look": reply.look.strip(), "inventory": reply.inventory.strip()}
        return Transition(
            observation=text,
            reward=reward,
            score=reply.score,
            success=reply.is_won,
            is_terminal=self._is_over,
            action_valid=is_valid,
            progress=1.0 if reply.is_won else min(1.0, max(0.0, reply.score)),
            admissible_actions=reply.valid_actions if self._knobs["admissible_actions"] else None,
            extras={name: value for name, value in extras.items() if self._knobs[name]},
            state_hash=state_hash(text, reply.look, reply.inventory, reply.score, self._is_over),
        )


def _spelled(line: str, valid: Sequence[str]) -> str:
    """The valid action that the line is but for its case, else the line: games read capitals as other words."""
    if line in valid:
        return line
    lowered = line.lower()
    return next((action for action in valid if action.lower() == lowered), line)
