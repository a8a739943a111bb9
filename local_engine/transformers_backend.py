"""The general backend: transformers' own model and cache, one sequence at a time. Slower than the decoder, and correct
for every causal architecture that `AutoModelForCausalLM` knows."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol  # Any: config.json is free-form

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from local_engine.backend import StepInput
from local_engine.errors import UnsupportedModelError
from local_engine.parameters import IGNORED_SUFFIXES, verify_names, verify_tensor


class CausalModel(Protocol):
    """The part of a transformers model used here."""

    def __call__(self, **inputs: object) -> Any: ...  # transformers' output classes differ by model


class TransformersBackend:
    """A transformers model with one `DynamicCache` per slot."""

    def __init__(self, raw: Mapping[str, Any], *, num_slots: int, device: torch.device, dtype: torch.dtype) -> None:
        fields = dict(raw)
        try:
            config = AutoConfig.for_model(fields.pop("model_type"), **fields)
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        except (KeyError, ValueError) as error:
            raise UnsupportedModelError(f"transformers cannot build this model: {error}") from error
        self._module: nn.Module = model.eval().to(device)
        self._model: CausalModel = model
        self._config = config
        self._device = device
        self._caches: list[DynamicCache | None] = [None] * num_slots
        self._lengths = [0] * num_slots
        self.can_rewind = can_crop(DynamicCache(config=config))

    @property
    def vocab_size(self) -> int:
        return int(self._config.vocab_size)

    def verify(self, tensors: Mapping[str, Tensor]) -> None:
        targets = self._targets()
        verify_names(tensors, set(targets), optional=self._tied_names())
        for name in targets.keys() & tensors.keys():
            verify_tensor(name, tensors[name], targets[name])

    @torch.inference_mode()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, target in self._targets().items():
            if name in tensors:
                target.copy_(tensors[name])

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        cache = copy.deepcopy(self._caches[source])
        if cache is None:
            raise RuntimeError(f"slot {source} is empty")
        self._caches[target], self._lengths[target] = cache, self._lengths[source]
        self._rewind(target, num_tokens)

    def clear_slot(self, slot: int) -> None:
        self._caches[slot], self._lengths[slot] = None, 0

    @torch.inference_mode()
    def forward(self, step: StepInput) -> Tensor:
        rows = zip(step.row_slots, step.row_positions, step.row_tokens, strict=True)
        logits = [self._extend(slot, start, [token_id], 1) for slot, start, token_id in rows]
        for segment in step.segments:
            logits.append(self._extend(segment.slot, segment.start, segment.token_ids, segment.num_logits))
        return torch.cat(logits)

    def _extend(self, slot: int, start: int, token_ids: Sequence[int], num_logits: int) -> Tensor:
        """Float32 logits [num_logits, vocab] of the last new tokens."""
        cache = self._rewind(slot, start)
        output = self._model(
            input_ids=torch.tensor([list(token_ids)], device=self._device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=max(1, num_logits),
        )
        self._lengths[slot] = start + len(token_ids)
        return output.logits[0, output.logits.shape[1] - num_logits :].float()

    def _rewind(self, slot: int, num_tokens: int) -> DynamicCache:
        cache = self._caches[slot]
        if cache is None or num_tokens == 0:
            cache = self._caches[slot] = DynamicCache(config=self._config)
        elif num_tokens < self._lengths[slot]:
            cache.crop(num_tokens - self._lengths[slot])
        self._lengths[slot] = num_tokens
        return cache

    def _targets(self) -> dict[str, Tensor]:
        """Parameters and saved buffers by checkpoint name, each tensor once."""
        tied = self._tied_names()
        return {
            name: tensor
            for name, tensor in self._module.state_dict().items()
            if name not in tied and not name.endswith(IGNORED_SUFFIXES)
        }

    def _tied_names(self) -> frozenset[str]:
        """Names whose tensor is another parameter's."""
        state = self._module.state_dict()
        seen: set[int] = set()
        tied: set[str] = set()
        for name, tensor in state.items():
            if tensor.data_ptr() in seen and name != "model.embed_tokens.weight":
                tied.add(name)
            seen.add(tensor.data_ptr())
        return frozenset(tied)


def can_crop(cache: DynamicCache) -> bool:
    """Whether every layer keeps all positions, so that a shorter prefix can be taken from it."""
    return not any(getattr(layer, "is_sliding", False) for layer in cache.layers)
