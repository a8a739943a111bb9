"""A byte-level tokenizer without merges: what it encodes can be checked by eye."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from longturn.tag_format import TAGS

EXTRA_SPECIAL = "<|end|>"


def write_tokenizer(path: Path, *, tags: Sequence[str] = (*TAGS, EXTRA_SPECIAL)) -> Path:
    """Write tokenizer.json; ids 0 to 255 are bytes, the tags follow."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in tags])
    tokenizer.save(str(path))
    return path
