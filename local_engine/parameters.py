"""Weights of a llama-like decoder, fused where that saves calls, and the Hugging Face names that fill them.

`targets` maps every checkpoint name to a view of the fused tensors, so a new version is copied in place and the running
forward passes keep their tensors.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import Tensor

from local_engine.decoder_config import DecoderConfig
from local_engine.errors import WeightsError

# Buffers that some exporters save beside the parameters; they follow from the config.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "self_attn.masked_bias", "self_attn.bias")


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """One block. Linear weights are [out, in]; q, k and v are stacked, and so are gate and up."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Parameters:
    """All weights on one device in one dtype."""

    def __init__(self, config: DecoderConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self.targets: dict[str, Tensor] = {}
        self.embedding = self._new("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.layers = [self._layer(config, index) for index in range(config.num_layers)]
        self.final_norm = self._new("model.norm.weight", config.hidden_size)
        self.head = self.embedding
        if not config.is_tied:
            self.head = self._new("lm_head.weight", config.vocab_size, config.hidden_size)

    def verify(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise `WeightsError` naming the first fault; accept exactly the model's parameters, finite, in any float."""
        verify_names(tensors, self.targets.keys(), optional={"lm_head.weight"})
        head = tensors.get("lm_head.weight")
        is_tied = "lm_head.weight" not in self.targets
        if head is not None and is_tied and not torch.equal(head, tensors["model.embed_tokens.weight"]):
            raise WeightsError("lm_head.weight differs from the embedding, but config.json ties the two")
        for name, target in self.targets.items():
            verify_tensor(name, tensors[name], target)

    @torch.inference_mode()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy verified tensors in place."""
        for name, target in self.targets.items():
            target.copy_(tensors[name])

    def _new(self, name: str, *shape: int) -> Tensor:
        return self._fused({name: shape[0]}, *shape[1:])

    def _fused(self, rows: Mapping[str, int], *tail: int) -> Tensor:
        fused = torch.zeros((sum(rows.values()), *tail), device=self._device, dtype=self._dtype)
        self.targets |= zip(rows, fused.split(list(rows.values())), strict=True)
        return fused

    def _layer(self, config: DecoderConfig, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        hidden, inner = config.hidden_size, config.intermediate_size
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        qkv_rows = {f"{attention}{name}_proj": num * config.head_dim for name, num in heads.items()}
        mlp_rows = {f"{mlp}{name}_proj": inner for name in ("gate", "up")}
        norm = config.head_dim if config.qk_norm else None
        return LayerWeights(
            input_norm=self._new(prefix + "input_layernorm.weight", hidden),
            qkv=self._fused(suffixed(qkv_rows, ".weight"), hidden),
            qkv_bias=self._fused(suffixed(qkv_rows, ".bias")) if config.qkv_bias else None,
            query_norm=self._new(attention + "q_norm.weight", norm) if norm else None,
            key_norm=self._new(attention + "k_norm.weight", norm) if norm else None,
            output=self._new(attention + "o_proj.weight", hidden, config.num_heads * config.head_dim),
            output_bias=self._new(attention + "o_proj.bias", hidden) if config.output_bias else None,
            mlp_norm=self._new(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=self._fused(suffixed(mlp_rows, ".weight"), hidden),
            gate_up_bias=self._fused(suffixed(mlp_rows, ".bias")) if config.mlp_bias else None,
            down=self._new(mlp + "down_proj.weight", hidden, inner),
            down_bias=self._new(mlp + "down_proj.bias", hidden) if config.mlp_bias else None,
        )


def suffixed(rows: Mapping[str, int], suffix: str) -> dict[str, int]:
    """The same sizes under parameter names."""
    return {name + suffix: num for name, num in rows.items()}


def verify_names(tensors: Mapping[str, Tensor], expected: AbstractSet[str], *, optional: AbstractSet[str]) -> None:
    """Raise `WeightsError` unless every expected name is there and nothing else but optional ones."""
    offered = {name for name in tensors if not name.endswith(IGNORED_SUFFIXES)}
    if missing := sorted(expected - offered):
        raise WeightsError(f"{len(missing)} tensors missing, first {missing[0]}")
    if unknown := sorted(offered - expected - optional):
        raise WeightsError(f"{len(unknown)} tensors unknown to this model, first {unknown[0]}")


def verify_tensor(name: str, tensor: Tensor, target: Tensor) -> None:
    """Raise `WeightsError` unless `tensor` could replace `target`."""
    if tensor.shape != target.shape:
        raise WeightsError(f"{name} has shape {list(tensor.shape)}, the running model has {list(target.shape)}")
    if not tensor.is_floating_point():
        raise WeightsError(f"{name} has dtype {tensor.dtype}, which is not a float")
    if not bool(torch.isfinite(tensor).all()):
        raise WeightsError(f"{name} holds a value that is not finite")
