"""Demonstrations as token rows with a response mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

from longturn.errors import ConfigError
from longturn.records import Trajectory, Turn
from longturn.tag_format import ACTION_END_TAG, ACTION_TAG, OBSERVATION_TAG, TAGS, THINK_END_TAG, THINK_TAG


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlace:
    """Where a trained turn's completion lies in its row, from its reasoning to the last token of its action."""

    start: int
    end: int
    kind: str
    """First word of its action, such as `take`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationRow:
    """One episode. `response_mask` is 1 where a token is imitated."""

    ids: tuple[int, ...]
    response_mask: tuple[bool, ...]
    turn_starts: tuple[int, ...]
    """Position of every turn's first token."""
    completions: tuple[CompletionPlace, ...]


class RowBuilder:
    """Encodes demonstrations in the plain tag format."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tag = {tag: _tag_id(tokenizer, tag) for tag in TAGS}
        self._encode = lru_cache(maxsize=65_536)(self._encode_text)

    def build(self, trajectory: Trajectory) -> DemonstrationRow:
        """Reasoning and action are trained; of a turn with `is_trained` false only the reasoning is."""
        if not trajectory.turns:
            raise ConfigError(f"the demonstration of task {trajectory.task.task_id} has no turn; record it again")
        ids: list[int] = []
        mask: list[bool] = []
        starts: list[int] = []
        completions: list[CompletionPlace] = []
        observations = (trajectory.initial_observation, *(turn.observation for turn in trajectory.turns[:-1]))
        for observation, turn in zip(observations, trajectory.turns, strict=True):
            prompt = (self._tag[OBSERVATION_TAG], *self._encode(observation), self._tag[THINK_TAG])
            reasoning = (*self._encode(turn.reasoning), self._tag[THINK_END_TAG], self._tag[ACTION_TAG])
            action = self._encode(turn.action)
            starts.append(len(ids))
            start = len(ids) + len(prompt)
            if turn.is_trained:
                end = start + len(reasoning) + len(action)
                completions.append(CompletionPlace(start=start, end=end, kind=_kind(turn)))
            ids += (*prompt, *reasoning, *action, self._tag[ACTION_END_TAG])
            mask += [False] * len(prompt) + [True] * len(reasoning) + [turn.is_trained] * (len(action) + 1)
        return DemonstrationRow(
            ids=tuple(ids), response_mask=tuple(mask), turn_starts=tuple(starts), completions=tuple(completions)
        )

    def _encode_text(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if any(index in self._tag.values() for index in ids):
            raise ConfigError(f"a demonstration's text spells a tag: {text[:80]!r}; record it from another environment")
        return tuple(ids)


def _tag_id(tokenizer: Tokenizer, tag: str) -> int:
    index = tokenizer.token_to_id(tag)
    if index is None:
        raise ConfigError(f"imitate.tokenizer_path: the tokenizer has no token {tag}")
    return index


def _kind(turn: Turn) -> str:
    words = turn.action.split()
    return words[0] if words else ""


def texts_of(trajectories: Sequence[Trajectory]) -> list[str]:
    """All texts of the demonstrations, for training a tokenizer."""
    texts: list[str] = []
    for trajectory in trajectories:
        texts.append(trajectory.initial_observation)
        for turn in trajectory.turns:
            texts += (turn.reasoning, turn.action, turn.observation)
    return texts
