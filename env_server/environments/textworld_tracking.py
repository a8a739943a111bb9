"""Follows the logic of a game beside its text, at 5-500 ms a turn: admissible commands, facts, winning policy."""

from collections.abc import Iterable
from pathlib import Path

from textworld.generator.game import Game, GameProgression
from textworld.generator.inform7 import Inform7Game


class LogicTracker:
    """TextWorld's own logic state, moved by the actions that the interpreter reports."""

    def __init__(self, logic: Path, *, tracks_policy: bool) -> None:
        game = Game.load(str(logic))
        self._inform = Inform7Game(game)
        self._progression = GameProgression(game, track_quests=tracks_policy)

    def follow(self, events: Iterable[str]) -> None:
        """Apply the Inform 7 actions that succeeded in a turn; those the logic does not know change nothing."""
        for event in events:
            action = self._inform.detect_action(event, self._progression.valid_actions)
            if action is not None:
                self._progression.update(action)

    def admissible_commands(self) -> tuple[str, ...]:
        return tuple(sorted(set(self._inform.gen_commands_from_actions(self._progression.valid_actions))))

    def facts(self) -> tuple[str, ...]:
        """The world's true statements with entity names, sorted."""
        facts = map(self._inform.get_human_readable_fact, self._progression.state.facts)
        return tuple(sorted(str(fact) for fact in facts))

    def policy(self) -> tuple[str, ...] | None:
        """Commands that win from here; None where TextWorld knows none."""
        actions = self._progression.winning_policy
        return None if actions is None else tuple(self._inform.gen_commands_from_actions(actions))
