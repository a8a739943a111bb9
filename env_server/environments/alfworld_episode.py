"""An ALFWorld game in play. Imports the simulator, so only worker processes import this."""

from collections.abc import Mapping

from env_server.environment import KnobValue, Transition
from env_server.environments.alfworld_commands import MAX_ACTION_CHARS, match_command
from env_server.environments.alfworld_experts import Expert, Explorer, WalkthroughExpert
from env_server.environments.alfworld_goals import parse_goal
from env_server.environments.alfworld_names import act_of
from env_server.environments.alfworld_progress import Progress
from env_server.environments.alfworld_simulator import Libraries, Operator, Simulator
from env_server.environments.alfworld_text import FactState, Words
from env_server.environments.alfworld_translation import Game, Translation
from env_server.environments.alfworld_world import World, world_from_facts
from env_server.environments.digests import state_hash
from env_server.environments.episodes import Episode

NOTHING_HAPPENS = "Nothing happens."
_LIBRARIES = Libraries()


class PlayableGame:
    """A translated game; shared by its episodes, and nothing in it changes but memos."""

    def __init__(self, game: Game, translation: Translation) -> None:
        self.translation = translation
        self.words = Words(game.grammar, self.translation)
        self.goal = parse_goal(game.domain, game.problem)
        self.walkthrough = game.walkthrough


class AlfworldEpisode(Episode):
    """A game from its first observation to its end. `close` it."""

    def __init__(self, game: PlayableGame, knobs: Mapping[str, KnobValue]) -> None:
        self._game = game
        self._knobs = knobs
        self._words = game.words
        self._state = FactState(game.words.logic, game.translation)
        self._simulator = Simulator(_LIBRARIES, game.translation.sas_text)
        self._expert: Expert = self._make_expert()
        self._progress = None if game.goal is None else Progress(game.goal, self._world())
        self._is_won = False
        self._commands: dict[str, Operator] | None = None

    def start(self) -> Transition:
        return self._transition(self._words.introduction(self._state))

    def step(self, action: str) -> Transition:
        if self._is_won:
            raise RuntimeError("step after the end of the game")
        command = self._understood(action)
        if command is None:
            return self._transition(NOTHING_HAPPENS, is_valid=False)
        return self._transition(self._apply(command), reward=float(self._is_won))

    def oracle(self) -> str | None:
        """The expert's next command; None where the goal is out of reach, or is no conjunction of known parts."""
        act = None if self._is_won else self._expert.next_act()
        if act is None or isinstance(act, str):
            return act
        commands = self._available()
        return next((command for command, operator in commands.items() if act_of(operator.words) == act), None)

    def close(self) -> None:
        self._simulator.close()

    def _understood(self, action: str) -> str | None:
        if len(action) > MAX_ACTION_CHARS:
            return None
        return match_command(action, self._available(), is_forgiving=self._knobs["matching"] == "forgiving")

    def _apply(self, command: str) -> str:
        operator = self._available()[command]
        changes = self._simulator.apply(operator)
        if operator.words[0] in self._game.translation.conditional:
            changed = {change[1:] for change in changes}
            changes = [change for change in self._simulator.facts() if change[1:] in changed]
        self._state.change(changes)
        self._commands = None
        self._is_won = self._simulator.is_won()
        act = act_of(operator.words)
        self._expert.follow(command, act)
        return self._words.answer(operator.words, self._state)

    def _available(self) -> dict[str, Operator]:
        """Commands that can be given now. Of several actions with one command it is the first by name.

        The simulator's order rests on sets of the translator, so it may differ between two translations of a game.
        """
        if self._commands is None:
            self._commands = {}
            for operator in sorted(self._simulator.operators(), key=lambda operator: operator.name):
                self._commands.setdefault(self._words.command(operator.words, self._state), operator)
        return self._commands

    def _transition(self, text: str, *, reward: float = 0.0, is_valid: bool = True) -> Transition:
        lists_actions = self._knobs["admissible_actions"]
        return Transition(
            observation=text,
            reward=reward,
            score=float(self._is_won),
            success=self._is_won,
            is_terminal=self._is_won,
            action_valid=is_valid,
            progress=1.0 if self._is_won else self._progress and self._progress.of(self._world()),
            admissible_actions=tuple(sorted(self._available())) if lists_actions else None,
            extras={"facts": "\n".join(self._facts())} if self._knobs["facts"] else {},
            state_hash=state_hash(text, self._state.changed()),
        )

    def _facts(self) -> list[str]:
        names = self._words.names
        facts = self._state.true_facts()
        return sorted(f"{name}({', '.join(names[word].strip() for word in words)})" for name, words in facts)

    def _world(self) -> World:
        return world_from_facts(self._state.true_facts())

    def _make_expert(self) -> Expert:
        if self._knobs["expert"] == "handcoded":
            return Explorer(self._game.goal, self._world)
        return WalkthroughExpert(self._game.walkthrough, self._game.goal, self._world)
