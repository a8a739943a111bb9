"""Text to ids, safely: no text can produce a special token, and what does not fit is cut where a reader sees it.

Invariant: `[...]` stands wherever something was left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

_TailRule = Callable[[int], int]

CUT_MARK = "[...]"
_MAX_CHARACTERS_PER_TOKEN = 64
_MAX_REMEMBERED_CHARACTERS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Ids of a text."""

    ids: tuple[int, ...]
    was_cut: bool = False
    """The text exceeded its budget; `[...]` stands for what is missing."""
    was_neutralised: bool = False
    """The text spelled a special token, which was broken up."""

    def __add__(self, later: Piece) -> Piece:
        """This text and then another."""
        return Piece(
            ids=self.ids + later.ids,
            was_cut=self.was_cut or later.was_cut,
            was_neutralised=self.was_neutralised or later.was_neutralised,
        )


class TextEncoder:
    """Encodes what environments and policies say. Equal texts are encoded once: members of a group see the same."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.special = {index: token.content for index, token in tokenizer.get_added_tokens_decoder().items()}
        """Content of every added token by id; no text becomes one of these."""
        spellings = sorted(self.special.values(), key=len)[::-1]
        self._special_text = re.compile("|".join(map(re.escape, spellings)) if spellings else r"(?!)")
        self._cut_ids = tuple(tokenizer.encode(CUT_MARK, add_special_tokens=False).ids)
        self._remembered = lru_cache(maxsize=8192)(self._encode)

    def encode(self, text: str) -> Piece:
        """The ids of a text, none of them special."""
        return self._remembered(text) if len(text) <= _MAX_REMEMBERED_CHARACTERS else self._encode(text)

    def fit(self, text: str, max_tokens: int) -> Piece:
        """At most so many ids; of a longer text the middle is missing, for places come first and exits last."""
        return self._fit(text, max_tokens, num_tail_of=lambda num_kept: num_kept // 2)

    def fit_end(self, text: str, max_tokens: int) -> Piece:
        """At most so many ids; of a longer text the beginning is missing."""
        return self._fit(text, max_tokens, num_tail_of=lambda num_kept: num_kept)

    def spell(self, text: str) -> tuple[int, ...]:
        """The ids of a text of ours, in which special tokens are meant."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def special_id(self, text: str) -> int | None:
        """The id of an added token by its content; None if there is none."""
        index = self.tokenizer.token_to_id(text)
        return index if index is not None and index in self.special else None

    def _fit(self, text: str, max_tokens: int, *, num_tail_of: _TailRule) -> Piece:
        # Far longer text than the budget can hold is shortened before it costs the tokenizer seconds.
        half = max_tokens * _MAX_CHARACTERS_PER_TOKEN
        is_far_too_long = len(text) > 2 * half
        piece = self.encode(text[:half] + CUT_MARK + text[-half:] if is_far_too_long else text)
        if len(piece.ids) <= max_tokens:
            return Piece(ids=piece.ids, was_cut=is_far_too_long, was_neutralised=piece.was_neutralised)
        num_kept = max(0, max_tokens - len(self._cut_ids))
        num_tail = num_tail_of(num_kept)
        kept = (*piece.ids[: num_kept - num_tail], *self._cut_ids, *piece.ids[len(piece.ids) - num_tail :])
        return Piece(ids=kept, was_cut=True, was_neutralised=piece.was_neutralised)

    def _encode(self, text: str) -> Piece:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        neutral = self._special_text.sub(_break_up, clean)
        ids: Sequence[int] = self.tokenizer.encode(neutral, add_special_tokens=False).ids
        # A normaliser may turn other characters into those of a special token; such ids are dropped.
        kept = tuple(index for index in ids if index not in self.special)
        return Piece(ids=kept, was_neutralised=neutral != clean or len(kept) != len(ids))


def _break_up(match: re.Match[str]) -> str:
    text = match.group()
    return f"{text[0]} {text[1:]}"
