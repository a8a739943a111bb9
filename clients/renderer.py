"""Text to ids and back, once each: what a prompt adds per turn, and what a completion says.

The plain tag format, append-only:

    <obs>OBSERVATION<think>REASONING</think><action>ACTION</action><obs>OBSERVATION<think>...
    |---- added prompt ----|------------- completion -------------|---- added prompt ---|

Invariant: history is exactly the ids that were sent and sampled. A completion is decoded to be read and never encoded
again; an observation is encoded once. Tags are single tokens that no text can produce: text that spells one is broken
up before it is encoded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from longturn.errors import ConfigError
from longturn.records import RenderMode, TokenSpan
from longturn.tag_format import (
    ACTION_END_TAG,
    ACTION_TAG,
    MAX_CLOSING_TOKENS,
    OBSERVATION_TAG,
    TAGS,
    THINK_END_TAG,
    THINK_TAG,
)

CUT_MARK = "[...]"
_MAX_CHARACTERS_PER_TOKEN = 64
_MAX_REMEMBERED_CHARACTERS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedObservation:
    """What a turn adds to the prompt."""

    added_ids: tuple[int, ...]
    was_cut: bool = False
    """The observation exceeded its token budget; its middle was replaced by `[...]`."""
    was_neutralised: bool = False
    """The observation spelled a special token, which was broken up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCompletion:
    """What a completion says. Spans are token positions without tags; absent where there are no tokens."""

    action: str
    reasoning: str
    format_valid: bool
    reasoning_span: TokenSpan | None
    action_span: TokenSpan | None
    closing_ids: tuple[int, ...]
    """Synthetic tokens that the history needs after the completion to stay well-formed; empty after a proper end."""


class Renderer(Protocol):
    """What an actor needs to turn observations into prompts and completions into actions."""

    mode: RenderMode
    tokenizer_hash: str
    """SHA-256 of the tokenizer's file; the learner trains with the same one."""
    stop_token_ids: tuple[int, ...]
    max_closing_tokens: int
    """Most tokens that `ParsedCompletion.closing_ids` may hold."""

    def render(self, observation: str) -> RenderedObservation:
        """The ids that this observation adds to the prompt."""
        ...

    def parse(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Read a completion; whatever its ids are, this never raises."""
        ...


class TagRenderer:
    """The plain tag format."""

    mode = RenderMode.APPEND
    max_closing_tokens = MAX_CLOSING_TOKENS

    def __init__(self, tokenizer: Tokenizer, *, tokenizer_hash: str, max_observation_tokens: int) -> None:
        """Raise ConfigError if a tag is not one token of the tokenizer, or the budget is below 16 tokens."""
        if max_observation_tokens < 16:
            raise ConfigError(f"max_observation_tokens must be >= 16, got {max_observation_tokens}")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.tokenizer_hash = tokenizer_hash
        self._max_observation_tokens = max_observation_tokens
        added = {index: token.content for index, token in tokenizer.get_added_tokens_decoder().items()}
        self._special_ids = frozenset(added)
        self._special_text = re.compile("|".join(re.escape(text) for text in sorted(added.values(), key=len)[::-1]))
        ids = {tag: _tag_id(tokenizer, tag, added) for tag in TAGS}
        self._observation_id = ids[OBSERVATION_TAG]
        self._think_id = ids[THINK_TAG]
        self._think_end_id = ids[THINK_END_TAG]
        self._action_id = ids[ACTION_TAG]
        self._action_end_id = ids[ACTION_END_TAG]
        self._cut_ids = tuple(tokenizer.encode(CUT_MARK, add_special_tokens=False).ids)
        self.stop_token_ids = (self._action_end_id,)
        # Members of a group walk through the same places.
        self._remembered = lru_cache(maxsize=4096)(self._render)

    def render(self, observation: str) -> RenderedObservation:
        """`<obs>` observation `<think>`."""
        is_short = len(observation) <= _MAX_REMEMBERED_CHARACTERS
        return self._remembered(observation) if is_short else self._render(observation)

    def _render(self, observation: str) -> RenderedObservation:
        # Far longer text than the budget can hold is shortened before it costs the tokenizer seconds.
        half = self._max_observation_tokens * _MAX_CHARACTERS_PER_TOKEN
        was_cut = len(observation) > 2 * half
        if was_cut:
            observation = observation[:half] + CUT_MARK + observation[-half:]
        ids, was_neutralised = self._encode(observation)
        if len(ids) > self._max_observation_tokens:
            was_cut = True
            ids = self._cut(ids)
        return RenderedObservation(
            added_ids=(self._observation_id, *ids, self._think_id), was_cut=was_cut, was_neutralised=was_neutralised
        )

    def parse(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Find reasoning and action by the positions of the tags.

        Tolerant: without `</think>` the reasoning ends at `<action>`, without `<action>` the action is what follows
        `</think>`, without `</action>` it runs to the end; all of these have `format_valid` false. Only the ids count:
        an engine that stops at the last token of its budget may say that the length stopped it.
        """
        ids = list(completion_ids)
        think_end = _find(ids, self._think_end_id, 0)
        action_start = _find(ids, self._action_id, 0 if think_end is None else think_end + 1)
        reasoning_end = _first(think_end, action_start, _find(ids, self._action_end_id, 0), len(ids))
        body_start = _first(action_start, think_end, len(ids) - 1) + 1
        action_end = _find(ids, self._action_end_id, body_start)
        body_end = len(ids) if action_end is None else action_end
        action, reasoning = self._text(ids[body_start:body_end]), self._text(ids[:reasoning_end])
        format_valid = (
            think_end is not None
            and action_start is not None
            and action_end == len(ids) - 1
            and bool(action)
            and not self._text(ids[think_end + 1 : action_start])
            and self._special_ids.isdisjoint(ids[:reasoning_end])
            and self._special_ids.isdisjoint(ids[body_start:body_end])
        )
        return ParsedCompletion(
            action=action,
            reasoning=reasoning,
            format_valid=format_valid,
            reasoning_span=_span(0, reasoning_end),
            action_span=_span(body_start, body_end),
            closing_ids=self._closing_ids(ids, think_end, action_start),
        )

    def _closing_ids(self, ids: list[int], think_end: int | None, action_start: int | None) -> tuple[int, ...]:
        if ids and ids[-1] == self._action_end_id:
            return ()
        if action_start is not None:
            return (self._action_end_id,)
        if think_end is not None:
            return (self._action_id, self._action_end_id)
        return (self._think_end_id, self._action_id, self._action_end_id)

    def _encode(self, text: str) -> tuple[list[int], bool]:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        neutral = self._special_text.sub(_break_up, clean)
        ids = self._tokenizer.encode(neutral, add_special_tokens=False).ids
        # A normaliser may turn other characters into a tag's; such ids are dropped.
        kept = [index for index in ids if index not in self._special_ids]
        return kept, neutral != clean or len(kept) != len(ids)

    def _cut(self, ids: list[int]) -> list[int]:
        """Keep both ends: text environments name the place first and the exits last."""
        num_kept = self._max_observation_tokens - len(self._cut_ids)
        num_tail = num_kept // 2
        return [*ids[: num_kept - num_tail], *self._cut_ids, *ids[len(ids) - num_tail :]]

    def _text(self, ids: list[int]) -> str:
        plain = [index for index in ids if index not in self._special_ids]
        return self._tokenizer.decode(plain, skip_special_tokens=False).strip() if plain else ""


def load_tag_renderer(path: Path, *, max_observation_tokens: int) -> TagRenderer:
    """Read `tokenizer.json` (or the one in a folder); raise ConfigError naming what to change."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"tokenizer {file} cannot be read ({error.strerror}); set renderer.tokenizer to the policy's folder, or "
            "make one with `longturn warmstart`"
        ) from error
    return TagRenderer(
        _parse_tokenizer(data, file),
        tokenizer_hash=hashlib.sha256(data).hexdigest(),
        max_observation_tokens=max_observation_tokens,
    )


def _parse_tokenizer(data: bytes, file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ConfigError(f"tokenizer {file} is not a tokenizer.json of the tokenizers library: {error}") from error


def _tag_id(tokenizer: Tokenizer, tag: str, added: dict[int, str]) -> int:
    index = tokenizer.token_to_id(tag)
    if index is None or index not in added:
        raise ConfigError(
            f"the tokenizer has no added token {tag!r}, which the plain tag format needs ({' '.join(TAGS)}); use the "
            "tokenizer of a `longturn warmstart` policy, or add the five tags to it and resize the model's embedding"
        )
    return index


def _break_up(match: re.Match[str]) -> str:
    text = match.group()
    return f"{text[0]} {text[1:]}"


def _find(ids: list[int], wanted: int, start: int) -> int | None:
    try:
        return ids.index(wanted, start)
    except ValueError:
        return None


def _first(*positions: int | None) -> int:
    """The first position that is known; the last one always is."""
    return next(position for position in positions if position is not None)


def _span(start: int, end: int) -> TokenSpan | None:
    return TokenSpan(start=start, end=end) if end > start else None
