"""A causal language model small enough for tests, as an ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCABULARY_SIZE = 48


def write_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write a two-layer model with random weights and a word-level tokenizer; returns the folder."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        use_sliding_window=False,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
