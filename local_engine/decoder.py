"""The fast backend: a llama-like decoder with static key-value slots and one ragged pass per step.

All new tokens of a step, single-token rows first, go through each linear layer as one matrix; only attention tells the
sequences apart. Equal to transformers' own forward up to float noise.
"""

# T tokens of a step, R of them single-token rows, H key-value heads, G query heads per key-value head, D head dimension

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from local_engine.attention import (
    CALL_BYTES_CPU,
    CALL_BYTES_GPU,
    RowGroup,
    attend_group,
    attend_segment,
    group_rows,
    mask_group,
    segment_bias,
)
from local_engine.backend import Segment, StepInput
from local_engine.decoder_config import DecoderConfig
from local_engine.parameters import LayerWeights, Parameters


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """Index tensors of one step, shared by all layers."""

    tokens: Tensor
    cos: Tensor
    sin: Tensor
    """[T], [T, 1, D], [T, 1, D]"""
    places: Tensor
    """[T*H] row of each token's head in the flattened key-value memory."""
    groups: list[RowGroup]
    segments: list[tuple[int, Segment, Tensor]]
    """First token of the segment in T, the segment, its causal mask."""
    wanted: Tensor | None
    """Indices in T that want logits; None for all."""


class Decoder:
    """Weights and key-value memory of one model."""

    can_rewind = True

    def __init__(
        self, config: DecoderConfig, *, num_slots: int, slot_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._device = device
        self._slot_tokens = slot_tokens
        self._parameters = Parameters(config, device=device, dtype=dtype)
        # Zeroed, because masked positions still enter a product: whatever lies there must be finite.
        shape = (config.num_layers, 2, num_slots, config.num_kv_heads, slot_tokens, config.head_dim)
        self._memory = torch.zeros(shape, device=device, dtype=dtype)
        self._cos, self._sin = rotary_table(config, slot_tokens, device=device, dtype=dtype)
        self._head_places = torch.arange(config.num_kv_heads, device=device) * slot_tokens
        position_bytes = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
        self._call_positions = (CALL_BYTES_CPU if device.type == "cpu" else CALL_BYTES_GPU) // position_bytes

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    def verify(self, tensors: Mapping[str, Tensor]) -> None:
        self._parameters.verify(tensors)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._parameters.load(tensors)

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        self._memory[:, :, target, :, :num_tokens] = self._memory[:, :, source, :, :num_tokens]

    @torch.inference_mode()
    def clear_slot(self, slot: int) -> None:
        self._memory[:, :, slot].zero_()

    @torch.inference_mode()
    def forward(self, step: StepInput) -> Tensor:
        plan = self._plan(step)
        hidden = embedding(plan.tokens, self._parameters.embedding)
        for index, layer in enumerate(self._parameters.layers):
            hidden = hidden + self._attention(self._norm(hidden, layer.input_norm), layer, self._memory[index], plan)
            hidden = hidden + self._mlp(self._norm(hidden, layer.mlp_norm), layer)
        if plan.wanted is not None:
            hidden = hidden.index_select(0, plan.wanted)
        return linear(self._norm(hidden, self._parameters.final_norm), self._parameters.head).float()

    def _attention(self, hidden: Tensor, layer: LayerWeights, memory: Tensor, plan: StepPlan) -> Tensor:
        num_kv, num_heads, dim = self._config.num_kv_heads, self._config.num_heads, self._config.head_dim
        heads = linear(hidden, layer.qkv, layer.qkv_bias).view(len(hidden), num_heads + 2 * num_kv, dim)
        query, key, value = heads.split((num_heads, num_kv, num_kv), 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        query, key = rotate(query, plan.cos, plan.sin), rotate(key, plan.cos, plan.sin)
        keys, values = memory[0], memory[1]
        keys.view(-1, dim).index_copy_(0, plan.places, key.reshape(-1, dim))
        values.view(-1, dim).index_copy_(0, plan.places, value.reshape(-1, dim))
        query = query.view(len(hidden), num_kv, num_heads // num_kv, dim)
        parts = [attend_group(query, keys, values, group) for group in plan.groups]
        for first, segment, bias in plan.segments:
            last = segment.start + len(segment.token_ids)
            slot_keys, slot_values = keys[segment.slot, :, :last], values[segment.slot, :, :last]
            parts.append(attend_segment(query[first : first + len(segment.token_ids)], slot_keys, slot_values, bias))
        attended = torch.cat(parts) if len(parts) > 1 else parts[0]
        return linear(attended.reshape(len(hidden), -1), layer.output, layer.output_bias)

    def _mlp(self, hidden: Tensor, layer: LayerWeights) -> Tensor:
        gate, up = linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        return linear(silu(gate) * up, layer.down, layer.down_bias)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, weight, self._config.rms_norm_eps)

    def _plan(self, step: StepInput) -> StepPlan:
        tokens, positions, slots = list(step.row_tokens), list(step.row_positions), list(step.row_slots)
        num_rows = len(tokens)
        wanted = list(range(num_rows))
        segments: list[tuple[int, Segment, Tensor]] = []
        num_groups = self._config.num_heads // self._config.num_kv_heads
        for segment in step.segments:
            size = len(segment.token_ids)
            bias = segment_bias(segment.start, size, num_groups, self._memory)
            segments.append((len(tokens), segment, bias))
            tokens += segment.token_ids
            positions += range(segment.start, segment.start + size)
            slots += [segment.slot] * size
            wanted += range(len(tokens) - segment.num_logits, len(tokens))
        lengths = [position + 1 for position in step.row_positions]
        groups = group_rows(step.row_slots, lengths, call_positions=self._call_positions)
        for group in groups:
            mask_group(group, step.row_slots, lengths, self._memory)
        index = torch.tensor([tokens, positions, slots], device=self._device)
        slot_places = index[2] * (self._config.num_kv_heads * self._slot_tokens) + index[1]
        return StepPlan(
            tokens=index[0],
            cos=self._cos[index[1]],
            sin=self._sin[index[1]],
            places=(slot_places[:, None] + self._head_places).flatten(),
            groups=groups,
            segments=segments,
            wanted=None if len(wanted) == len(tokens) else torch.tensor(wanted, device=self._device, dtype=torch.long),
        )


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, computed in float32, scaled in the dtype of the weights."""
    if hidden.dtype == torch.float32:
        return torch.rms_norm(hidden, weight.shape, weight, eps)
    wide = hidden.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(hidden.dtype)


def rotary_table(
    config: DecoderConfig, num_positions: int, *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, 1, D]; the second half of the sines carries the rotation's sign."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    angles = torch.outer(torch.arange(num_positions).float(), 1.0 / config.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    cosines, sines = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return cosines[:, None].to(device, dtype), sines[:, None].to(device, dtype)


def rotate(heads_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotary position embedding over pairs (i, i + D/2)."""
    half = heads_THD.shape[-1] // 2
    return heads_THD * cos_T1D + torch.roll(heads_THD, half, -1) * sin_T1D
