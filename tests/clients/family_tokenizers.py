"""Small tokenizers with the special tokens and the byte-level vocabulary of known families, trained here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL: dict[str, tuple[str, ...]] = {
    "qwen2.5": _CHATML,
    "qwen3": _CHATML,
    "smollm2": _CHATML,
    "llama3": ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
}
TEXT_TOKENS: dict[str, tuple[str, ...]] = {"qwen3": ("<think>", "</think>", "<tool_call>", "</tool_call>")}
"""Added tokens that a decoder shows."""
FAMILIES = tuple(SPECIAL)

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen and Llama 3 cut text before they merge; SmolLM2 differs where it does not matter here."""

_CORPUS = [
    "You are in a cave. There is an exit to the east and a lamp on the floor.\nobservation: the door is open.",
    "</think><action>go east</action> </think>\n<action>take lamp</action>\n<think>\nI should look.\n</think>\n\n",
    "system\nuser\nassistant\nYou act in a text environment. Exits: north, south. Sag 'Grüß Gott' 世界 🙂",
] * 4


def family_tokenizer(family: str, *, words: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of the family's kind; `words` become likely merges."""
    tokenizer = Tokenizer(models.BPE())
    by_pattern = pre_tokenizers.Split(Regex(_PATTERN), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_pattern, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*_CORPUS, *list(words) * 20], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL[family]])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in TEXT_TOKENS.get(family, ())])
    return tokenizer


def write_family_tokenizer(family: str, path: Path) -> Path:
    """Write tokenizer.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    family_tokenizer(family).save(str(path))
    return path
