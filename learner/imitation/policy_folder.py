"""The policy folder that imitation leaves: a whole policy, or none."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from learner.imitation.tokenizer import save_tokenizer
from longturn.disk import writing_to

_CONFIG = "config.json"
"""Without this file a folder is no policy: it goes first and comes last."""


def write_policy(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights (safetensors), config and tokenizer; DiskError, and no policy, if one of them finds no room."""
    partial = folder / ".partial"
    with writing_to(folder, SafetensorError):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            model.save_pretrained(partial, safe_serialization=True)
            save_tokenizer(tokenizer, partial)
            (folder / _CONFIG).unlink(missing_ok=True)
            for path in sorted(partial.iterdir(), key=lambda path: path.name == _CONFIG):
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
