"""Text of completions, for rules that read it; everything else in the learner works on ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from longturn.errors import ConfigError


def completion_text(folder: Path) -> Callable[[Sequence[int]], str]:
    """A decoder by the folder's tokenizer, special tokens included; ConfigError if it has none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"learner.model.path: {folder} has no tokenizer.json, which advantage.estimator = rlvmr reads"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ConfigError(f"learner.model.path: {path} is no tokenizer.json: {error}") from error
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)
