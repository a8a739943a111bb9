"""The policy that imitation starts from: a small Llama made from nothing, or a given model folder."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from learner.imitation.config import ModelConfig
from longturn.errors import ConfigError


def make_model(
    config: ModelConfig, *, vocab_size: int, seed: int, pad_id: int | None, eos_id: int | None
) -> PreTrainedModel:
    """A Llama with tied embeddings; matrices start at 1/sqrt(fan-in), those that write to the residual stream lower.

    The ids are those of the tokenizer's padding and end tokens, None where it has none; no training needs them.
    """
    torch.manual_seed(seed)
    # Not Qwen2: transformers 5.19 splits text by Qwen2's own rules beside such a model, whatever tokenizer.json says.
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads or config.num_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            # Biases let a head attend by position alone, which is how the note before is found.
            attention_bias=True,
            pad_token_id=pad_id,
            bos_token_id=None,
            eos_token_id=eos_id,
        )
    )
    depth_scale = 1.0 / math.sqrt(2 * config.num_layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=_initial_std(name, parameter.shape[1], depth_scale))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def _initial_std(name: str, fan_in: int, depth_scale: float) -> float:
    if "embed" in name:
        return 0.02
    return (depth_scale if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0) / math.sqrt(fan_in)


def load_model(folder: Path, *, num_ids: int) -> PreTrainedModel:
    """Read a model folder in float32; raise ConfigError if the tokenizer has more ids than the model has rows."""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"imitate.base_model: {folder} cannot be loaded: {error}") from error
    num_rows = int(model.config.vocab_size)
    if num_ids > num_rows:
        raise ConfigError(
            f"imitate.tokenizer_path: the tokenizer has {num_ids} ids, imitate.base_model only {num_rows} rows; they "
            "do not belong together"
        )
    return model


def output_weight(model: PreTrainedModel) -> Tensor:
    """The matrix that turns hidden states into logits, V x D; raise TypeError for a model without one."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise TypeError(f"{type(model).__name__} has no plain output matrix")
    return head.weight
