"""Trains a byte-level BPE tokenizer on the demonstrations' own text, or reads a given one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from learner.imitation.config import TokenizerConfig
from longturn.disk import write_json, write_whole
from longturn.errors import ConfigError
from longturn.tag_format import TAGS

PAD, EOS = "<pad>", "<eos>"


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Pieces are whole lines rather than words, so that a room's stock phrases become single tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in config.isolate),
            pre_tokenizers.Split(Regex(r"\n+"), "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[PAD, EOS, *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json, or the one in a folder; raise ConfigError if it is none or lacks a tag."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"imitate.tokenizer_path: there is no tokenizer at {file}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ConfigError(f"imitate.tokenizer_path: {file} is no tokenizer.json: {error}") from error
    missing = [tag for tag in TAGS if tokenizer.token_to_id(tag) is None]
    if missing:
        raise ConfigError(
            f"imitate.tokenizer_path: {file} has no token {' '.join(missing)}; add these as special tokens, or leave "
            "imitate.tokenizer_path out so that one is trained"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and the settings with which transformers loads it; DiskError if that is impossible."""
    write_whole(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS if tokenizer.token_to_id(EOS) is not None else None,
        "pad_token": PAD if tokenizer.token_to_id(PAD) is not None else None,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", {name: value for name, value in settings.items() if value is not None})
