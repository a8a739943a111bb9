from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from learner.diagnostics.cross_scoring import cross_score
from tests.support.plain_entropy import token_logprobs

SIZE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZE, tie_word_embeddings=True)),
}


def score_alone(model: PreTrainedModel, prompt: list[int], sample: list[int], temperature: float) -> float:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + sample])).logits[0, len(prompt) - 1 : -1]
    return token_logprobs(logits, torch.tensor(sample), temperature=temperature).double().sum().item()


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_shared_prefixes_score_like_whole_sequences(name: str, temperature: float) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    prompts = [torch.randint(61, (length,)).tolist() for length in (5, 11, 1)]
    samples = [torch.randint(61, (length,)).tolist() for length in (7, 1, 3, 12, 2)]
    sums = cross_score(model, prompts, samples, temperature=temperature, block_samples=2)
    expected = [[score_alone(model, prompt, sample, temperature) for prompt in prompts] for sample in samples]
    torch.testing.assert_close(sums, torch.tensor(expected, dtype=torch.float64), atol=1e-4, rtol=1e-5)


def test_an_empty_sample_is_refused() -> None:
    model = MODELS["llama"]().eval()
    with pytest.raises(ValueError, match="without tokens"):
        cross_score(model, [[1, 2]], [[3], []])
