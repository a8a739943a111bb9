"""Policies that need no model: random, oracle, scripted."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from clients.policies.base import TextAction
from longturn.errors import PolicyError
from longturn.records import StepResult

_DIRECTIONS = ("north", "south", "east", "west")
_VERBS = ("take", "open", "close", "examine", "drop", "eat", "unlock", "insert")
_WORD = re.compile(r"[a-z]{3,}")


class RandomPolicy:
    """Admissible actions at random where the environment lists them, else a direction or a verb and a word it saw."""

    needs_oracle = False

    def begin(self, seed: int) -> _RandomPlayer:
        """A fresh player."""
        return _RandomPlayer(random.Random(seed))


class _RandomPlayer:
    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    async def act(self, result: StepResult) -> TextAction:
        return TextAction(action=self._choose(result))

    def _choose(self, result: StepResult) -> str:
        if result.admissible_actions:
            return self._draw.choice(result.admissible_actions)
        nouns = sorted(set(_WORD.findall(result.observation.lower())))
        if not nouns or self._draw.random() < 0.5:
            return f"go {self._draw.choice(_DIRECTIONS)}"
        return f"{self._draw.choice(_VERBS)} {self._draw.choice(nouns)}"


class OraclePolicy:
    """Does what the environment's expert would do."""

    needs_oracle = True

    def begin(self, seed: int) -> _OraclePlayer:
        """A player; it has no memory and no chance."""
        return _OraclePlayer()


class _OraclePlayer:
    async def act(self, result: StepResult) -> TextAction:
        if result.oracle_action is None:
            raise PolicyError(
                "the environment knows no oracle action here; use an environment with has_oracle, and a server without "
                "forbid_privileged",
                reason="NO_ORACLE",
            )
        return TextAction(action=result.oracle_action)


class ScriptedTextPolicy:
    """Sends fixed actions in order, then the last one again."""

    needs_oracle = False

    def __init__(self, actions: Sequence[str]) -> None:
        if not actions:
            raise ValueError("a script needs at least one action")
        self._actions = tuple(actions)

    def begin(self, seed: int) -> _ScriptedPlayer:
        """A player at the start of the script."""
        return _ScriptedPlayer(self._actions)


class _ScriptedPlayer:
    def __init__(self, actions: tuple[str, ...]) -> None:
        self._actions = actions

    async def act(self, result: StepResult) -> TextAction:
        return TextAction(action=self._actions[min(result.turn_index, len(self._actions) - 1)])
