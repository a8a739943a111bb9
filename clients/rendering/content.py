"""What a question says: the observation and, where wanted, the admissible actions, each within its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clients.rendering.text import CUT_MARK, Piece, TextEncoder
from longturn.records import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentOptions:
    """Fields as in RendererConfig."""

    max_observation_tokens: int
    shows_admissible: bool = False
    max_admissible_tokens: int = 256


class Content:
    """Encodes results."""

    def __init__(self, encoder: TextEncoder, options: ContentOptions, *, trims: bool) -> None:
        """`trims`: leave out blank edges of observations."""
        self.encoder = encoder
        self._options = options
        self._trims = trims

    def of(self, result: StepResult) -> Piece:
        """The newest result as a question's content."""
        text = result.observation.strip() if self._trims else result.observation
        observation = self.encoder.fit(text, self._options.max_observation_tokens)
        if not (self._options.shows_admissible and result.admissible_actions):
            return observation
        return observation + self._admissible(result.admissible_actions)

    def _admissible(self, actions: Sequence[str]) -> Piece:
        """As many of the actions as fit, and how many are missing."""
        listed = [self.encoder.encode("\nYou can: ")]
        for index, action in enumerate(actions):
            listed.append(listed[-1] + self.encoder.encode(f"{action}; " if index < len(actions) - 1 else f"{action}."))
        if self._fits(listed[-1]):
            return listed[-1]
        endings = [listed[index] + self._missing(len(actions) - index) for index in range(len(actions))]
        return next((ending for ending in reversed(endings) if self._fits(ending)), endings[0])

    def _fits(self, piece: Piece) -> bool:
        return len(piece.ids) <= self._options.max_admissible_tokens

    def _missing(self, num_missing: int) -> Piece:
        mark = self.encoder.encode(f"{CUT_MARK} and {num_missing} more.")
        return Piece(ids=mark.ids, was_cut=True)
