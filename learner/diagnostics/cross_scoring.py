"""Cross-scoring matrix: every sample of reasoning under every prompt, each prompt run through the model once.

The keys and values of a prompt are kept and shared by all samples scored under it, so S x P scores cost P prompts and S
x P short continuations instead of S x P whole sequences. Works with any transformers causal LM with full attention and
a plain linear head; logits are made in chunks as in training. S samples, P prompts, b samples of a block, T tokens of
the longest sample of a block, D hidden size.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from learner.head import recompute
from learner.layout import sum_by


@torch.no_grad()
def cross_score(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    samples: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    block_samples: int = 32,
) -> Tensor:
    """Summed logprob (float64, S x P) of each sample's ids after each prompt's ids.

    Prompts and samples must not be empty. The model is used as it is: put it in eval mode if it has dropout.
    """
    if not all(prompts) or not all(samples):
        raise ValueError("a prompt or a sample without tokens cannot be scored")
    sums_SP = torch.zeros(len(samples), len(prompts), dtype=torch.float64)
    # Samples of like length share a block, so that little of it is padding.
    order = sorted(range(len(samples)), key=lambda index: len(samples[index]))
    for column, prompt in enumerate(prompts):
        prefix = _Prefix(model, prompt)
        for block in _blocks(order, block_samples):
            scores_b = prefix.score([samples[index] for index in block], temperature)
            sums_SP[block, column] = scores_b.to(sums_SP.device)
    return sums_SP


class _Prefix:
    """A prompt's cache and the hidden state that predicts the token after it."""

    def __init__(self, model: PreTrainedModel, prompt: Sequence[int]) -> None:
        head = model.get_output_embeddings()
        if head is None:
            raise ValueError(f"{type(model).__name__} has no language-model head to score with")
        self._body, self._config, self._weight_VD = model.base_model, model.config, head.weight
        self._length, self._device = len(prompt), model.device
        ids = torch.tensor([list(prompt)], device=model.device)
        output = self._body(input_ids=ids, past_key_values=DynamicCache(config=self._config), use_cache=True)
        self._cache = output.past_key_values
        self._last_11D = output.last_hidden_state[:, -1:]

    def score(self, samples: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """Summed logprob of each sample of a block (float64)."""
        ids_bT, mask_bT = _pad(samples, self._device)
        hidden_bTD = self._last_11D.expand(len(samples), -1, -1)
        if ids_bT.shape[1] > 1:
            hidden_bTD = torch.cat([hidden_bTD, self._continue(ids_bT[:, :-1])], dim=1)
        logprobs, _ = recompute(hidden_bTD[mask_bT], self._weight_VD, ids_bT[mask_bT], temperature=temperature)
        sample_of_token = mask_bT.nonzero()[:, 0]
        return sum_by(logprobs.double(), sample_of_token, len(samples))

    def _continue(self, ids_bT: Tensor) -> Tensor:
        # Padding stands on the right of causal attention: no real token sees it, so no mask is needed.
        size, length = ids_bT.shape
        cache = DynamicCache(config=self._config)
        for index, layer in enumerate(self._cache.layers):
            cache.update(layer.keys.expand(size, -1, -1, -1), layer.values.expand(size, -1, -1, -1), index)
        positions_1T = torch.arange(self._length, self._length + length, device=ids_bT.device)[None]
        output = self._body(input_ids=ids_bT, past_key_values=cache, use_cache=True, position_ids=positions_1T)
        return output.last_hidden_state


def _pad(samples: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(len(sample) for sample in samples)
    ids_bT = torch.tensor([[*sample, *[0] * (width - len(sample))] for sample in samples], device=device)
    lengths_b = torch.tensor([len(sample) for sample in samples], device=device)
    return ids_bT, torch.arange(width, device=device)[None] < lengths_b[:, None]


def _blocks(order: Sequence[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield list(order[start : start + size])
