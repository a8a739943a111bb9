"""The environment's expert, with mistakes that are shown but not imitated."""

from __future__ import annotations

import random
from collections.abc import Sequence

from clients.policies.base import TextAction
from clients.policies.text import OraclePolicy
from longturn.records import StepResult


class NoisyOracle:
    """Does what the expert would do, but in a share `noise` of the turns something else."""

    needs_oracle = True

    def __init__(self, noise: float = 0.1) -> None:
        """Raise ValueError unless `noise` lies in [0, 1]."""
        if not 0.0 <= noise <= 1.0:
            raise ValueError(f"noise must lie in [0, 1], got {noise}")
        self._noise = noise

    def begin(self, seed: int) -> _NoisyOraclePlayer:
        """A fresh player; equal seeds play equally."""
        return _NoisyOraclePlayer(random.Random(seed), self._noise)


class _NoisyOraclePlayer:
    def __init__(self, draw: random.Random, noise: float) -> None:
        self._draw = draw
        self._noise = noise
        self._expert = OraclePolicy().begin(0)
        self._expert_actions: list[str] = []

    async def act(self, result: StepResult) -> TextAction:
        expert = await self._expert.act(result)
        mistakes = _mistakes(result.admissible_actions, self._expert_actions, expert.action)
        self._expert_actions.append(expert.action)
        if mistakes and self._draw.random() < self._noise:
            return TextAction(action=self._draw.choice(mistakes), is_trained=False)
        return expert


def _mistakes(admissible: Sequence[str], earlier: Sequence[str], expert_action: str) -> list[str]:
    """Other admissible actions, or where the environment lists none, other actions that the expert took before."""
    return sorted({action for action in (admissible or earlier) if action != expert_action})
