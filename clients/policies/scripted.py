"""Replays fixed completions, so that an actor can run without a model."""

from __future__ import annotations

from collections.abc import Sequence

from clients.policies.base import Completion
from longturn.errors import PolicyError
from longturn.records import SamplingParams


class ScriptedPolicy:
    """Gives every episode the same completions, turn by turn, and keeps the prompts it was asked."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        self._completions = tuple(completions)
        self.prompts: list[tuple[int, ...]] = []

    async def complete(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        episode_key: str,
        turn_index: int,
        stop_texts: Sequence[str] = (),
    ) -> Completion:
        """The completion of this turn; PolicyError after the last."""
        self.prompts.append(tuple(prompt_ids))
        if turn_index >= len(self._completions):
            raise PolicyError(f"episode {episode_key}: the script has {len(self._completions)} completions")
        return self._completions[turn_index]
