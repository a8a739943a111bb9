"""Which bytes each token of a byte-level tokenizer stands for, so that text is found in ids without encoding anything.

Decoders of whole sequences hide where a token begins: a tag may end in the middle of a token, and a character may lie
in two. Bytes have no such seams.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from tokenizers import Tokenizer

from longturn.errors import ConfigError
from longturn.records import TokenSpan


def _byte_symbols() -> dict[str, int]:
    """The byte behind each of the 256 symbols of byte-level vocabularies: printable Latin-1 is itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {chr(256 + rank): value for rank, value in enumerate(others)}


class TokenBytes:
    """Bytes of every id. Special tokens, and ids that the tokenizer does not know, stand for nothing."""

    def __init__(self, tokenizer: Tokenizer, *, spoken: Iterable[str] = ()) -> None:
        """`spoken`: added tokens that are text all the same, such as `<think>`. ConfigError if not byte-level."""
        symbols = _byte_symbols()
        added = tokenizer.get_added_tokens_decoder()
        self._bytes: dict[int, bytes] = {}
        for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
            if index in added:
                continue
            try:
                self._bytes[index] = bytes(map(symbols.__getitem__, token))
            except KeyError as error:
                raise ConfigError(
                    f"the tokenizer's token {token!r} is not made of bytes; chat formats need a byte-level tokenizer "
                    "(Qwen, Llama 3, SmolLM2), set renderer.format = 'plain' for others"
                ) from error
        texts = frozenset(spoken)
        self._bytes |= {index: item.content.encode() for index, item in added.items() if item.content in texts}

    def is_text(self, token_id: int) -> bool:
        """Whether an id stands for text."""
        return token_id in self._bytes

    def read(self, token_ids: Sequence[int]) -> TokenText:
        """The text of these ids."""
        return TokenText([self._bytes.get(token_id, b"") for token_id in token_ids])


class TokenText:
    """The bytes of a list of tokens, and which token each of them came from."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.data = b"".join(parts)
        self._ends = list(accumulate(map(len, parts)))

    @property
    def whole(self) -> str:
        """All of it."""
        return self.data.decode("utf-8", "replace")

    def text(self, start: int, end: int) -> str:
        """Bytes [start, end) as text without blank edges; incomplete characters are shown as U+FFFD."""
        return self.data[start:end].decode("utf-8", "replace").strip()

    def span(self, start: int, end: int) -> TokenSpan | None:
        """The tokens that hold a byte of [start, end); None if there is none."""
        if end <= start:
            return None
        return TokenSpan(start=bisect_right(self._ends, start), end=bisect_left(self._ends, end) + 1)
