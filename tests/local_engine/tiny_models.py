"""Random tiny models in ordinary Hugging Face folders, and what transformers says about them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

VOCAB_SIZE = 300
EOS_ID = 1
CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3": transformers.Gemma3TextConfig,
}


def tiny_model(family: str, *, seed: int = 0, **fields: Any) -> Any:
    """A model with large enough weights that its logits differ clearly from token to token."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,
        "eos_token_id": EOS_ID,
    }
    config = CONFIGS[family](**(settings | fields))
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.2)
    return model


def save_model(model: Any, folder: Path) -> Path:
    """Write config, weights and a word-level tokenizer; return the folder."""
    model.save_pretrained(folder)
    vocabulary = {"<unk>": 0, "<eos>": EOS_ID} | {f"w{index}": index for index in range(2, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@torch.inference_mode()
def reference_logprobs(model: Any, token_ids: Sequence[int], *, temperature: float = 1.0) -> Tensor:
    """[T, V] log-softmax by transformers in float32: row t predicts token t + 1."""
    logits = model(torch.tensor([list(token_ids)])).logits[0].float()
    return (logits / temperature).log_softmax(-1)


def chosen_logprobs(
    model: Any, prompt: Sequence[int], completion: Sequence[int], *, temperature: float = 1.0
) -> list[float]:
    """What transformers gives for each completion token."""
    table = reference_logprobs(model, [*prompt, *completion], temperature=temperature)
    return [float(table[len(prompt) - 1 + index, token]) for index, token in enumerate(completion)]
