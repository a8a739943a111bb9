"""Renderers by their settings: a format of turns, and what a prompt keeps of earlier turns.

The plain tag format, appending:

    <obs>OBSERVATION<think>REASONING</think><action>ACTION</action><obs>OBSERVATION<think>...
    |---- added prompt ----|------------- completion -------------|---- added prompt ---|

Its tags are single tokens that no text can produce. Chat formats are in `clients.rendering.chat`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from clients.rendering.chat import ChatFormat, ChatOptions, Reasoning
from clients.rendering.content import Content, ContentOptions
from clients.rendering.contract import Conversation, ParsedCompletion, Renderer, TurnFormat
from clients.rendering.history import AppendConversation, StrippedConversation, WindowConversation, WindowOptions
from clients.rendering.text import TextEncoder
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

if TYPE_CHECKING:
    from clients.config import RendererConfig


class TagFormat:
    """The plain tag format."""

    max_closing_tokens = MAX_CLOSING_TOKENS
    opening_ids: tuple[int, ...] = ()
    separator_ids: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    trims_content = False

    def __init__(self, tokenizer: Tokenizer, *, tokenizer_hash: str) -> None:
        """Raise ConfigError if a tag is not one token of the tokenizer."""
        self.encoder = TextEncoder(tokenizer)
        self.tokenizer_hash = tokenizer_hash
        ids = {tag: _tag_id(self.encoder, tag) for tag in TAGS}
        self._observation_id = ids[OBSERVATION_TAG]
        self._think_id = ids[THINK_TAG]
        self._think_end_id = ids[THINK_END_TAG]
        self._action_id = ids[ACTION_TAG]
        self._action_end_id = ids[ACTION_END_TAG]
        self.head_ids: tuple[int, ...] = (self._think_id,)
        self.stop_token_ids: tuple[int, ...] = (self._action_end_id,)

    def question(self, content_ids: Sequence[int]) -> tuple[int, ...]:
        """`<obs>` content."""
        return (self._observation_id, *content_ids)

    def earlier_answer(self, answer: str) -> tuple[int, ...]:
        """`<think></think><action>` answer `</action>`."""
        ids = self.encoder.encode(answer).ids
        return (self._think_id, self._think_end_id, self._action_id, *ids, self._action_end_id)

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
        special = self.encoder.special
        format_valid = (
            think_end is not None
            and action_start is not None
            and action_end == len(ids) - 1
            and bool(action)
            and not self._text(ids[think_end + 1 : action_start])
            and special.keys().isdisjoint(ids[:reasoning_end])
            and special.keys().isdisjoint(ids[body_start:body_end])
        )
        return ParsedCompletion(
            action=action,
            reasoning=reasoning,
            format_valid=format_valid,
            reasoning_span=_span(0, reasoning_end),
            action_span=_span(body_start, body_end),
            closing_ids=self._closing_ids(ids, think_end, action_start),
            answer=action,
        )

    def _closing_ids(self, ids: list[int], think_end: int | None, action_start: int | None) -> tuple[int, ...]:
        if ids and ids[-1] == self._action_end_id:
            return ()
        if action_start is not None:
            return (self._action_end_id,)
        if think_end is not None:
            return (self._action_id, self._action_end_id)
        return (self._think_end_id, self._action_id, self._action_end_id)

    def _text(self, ids: list[int]) -> str:
        plain = [index for index in ids if index not in self.encoder.special]
        return self.encoder.tokenizer.decode(plain, skip_special_tokens=False).strip() if plain else ""


class FormatRenderer:
    """A format with a way to keep history."""

    def __init__(
        self,
        turn_format: TurnFormat,
        content: ContentOptions,
        *,
        strips: bool = False,
        window: WindowOptions | None = None,
    ) -> None:
        """Appends, unless it `strips` earlier reasoning or has a `window`."""
        self.turn_format = turn_format
        self._content = Content(turn_format.encoder, content, trims=turn_format.trims_content)
        self._strips = strips
        self._window = window
        self.render_mode = RenderMode.WINDOW if strips or window else RenderMode.APPEND
        self.tokenizer_hash = turn_format.tokenizer_hash
        self.stop_token_ids = turn_format.stop_token_ids
        self.stop_texts = turn_format.stop_texts
        self.max_closing_tokens = turn_format.max_closing_tokens

    def begin(self) -> Conversation:
        """A fresh conversation."""
        if self._window is not None:
            return WindowConversation(self.turn_format, self._content, self._window)
        if self._strips:
            return StrippedConversation(self.turn_format, self._content)
        return AppendConversation(self.turn_format, self._content)


def load_renderer(config: RendererConfig) -> Renderer:
    """The renderer that the settings ask for; raise ConfigError naming what to change."""
    tokenizer, tokenizer_hash = _read_tokenizer(config.tokenizer)
    content = ContentOptions(
        max_observation_tokens=config.max_observation_tokens,
        shows_admissible=config.show_admissible,
        max_admissible_tokens=config.max_admissible_tokens,
    )
    window = WindowOptions(
        num_turns=config.window_turns,
        max_earlier_tokens=config.max_earlier_tokens,
        max_summary_tokens=config.max_summary_tokens,
    )
    return FormatRenderer(
        _turn_format(config, tokenizer, tokenizer_hash),
        content,
        strips=config.history == "strip",
        window=window if config.history == "window" else None,
    )


def load_chat_format(config: RendererConfig) -> ChatFormat:
    """The chat format that the settings ask for; ConfigError if they ask for the plain one."""
    tokenizer, tokenizer_hash = _read_tokenizer(config.tokenizer)
    turn_format = _turn_format(config, tokenizer, tokenizer_hash)
    if not isinstance(turn_format, ChatFormat):
        raise ConfigError(
            "chat completions need a chat format, renderer.format is 'plain'; set it to the family of the policy"
        )
    return turn_format


def load_tag_renderer(path: Path, *, max_observation_tokens: int) -> FormatRenderer:
    """The plain tag format, appending, over the tokenizer in a folder or file; raise ConfigError as `load_renderer`."""
    tokenizer, tokenizer_hash = _read_tokenizer(path)
    content = ContentOptions(max_observation_tokens=max_observation_tokens)
    return FormatRenderer(TagFormat(tokenizer, tokenizer_hash=tokenizer_hash), content)


def _turn_format(config: RendererConfig, tokenizer: Tokenizer, tokenizer_hash: str) -> TagFormat | ChatFormat:
    if config.format == "plain":
        return TagFormat(tokenizer, tokenizer_hash=tokenizer_hash)
    options = ChatOptions(
        reasoning=Reasoning(config.reasoning),
        instructions=config.instructions,
        stops_at_action=config.stop_at_action,
    )
    return ChatFormat(config.format, tokenizer, tokenizer_hash=tokenizer_hash, options=options)


def _read_tokenizer(path: Path) -> tuple[Tokenizer, str]:
    """`tokenizer.json`, or the one in a folder, and the hash of its bytes."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"tokenizer {file} cannot be read ({error.strerror}); set renderer.tokenizer to the policy's folder, or "
            "make one with `longturn warmstart`"
        ) from error
    try:
        return Tokenizer.from_str(data.decode("utf-8")), hashlib.sha256(data).hexdigest()
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ConfigError(f"tokenizer {file} is not a tokenizer.json of the tokenizers library: {error}") from error


def _tag_id(encoder: TextEncoder, tag: str) -> int:
    index = encoder.special_id(tag)
    if index is None:
        raise ConfigError(
            f"the tokenizer has no added token {tag!r}, which the plain tag format needs ({' '.join(TAGS)}); use the "
            "tokenizer of a `longturn warmstart` policy, set renderer.format to a chat format, or add the five tags to "
            "it and resize the model's embedding"
        )
    return index


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
