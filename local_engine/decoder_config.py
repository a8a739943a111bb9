"""Reads a Hugging Face `config.json` into the few numbers the hand-written decoder needs.

Everything the decoder does not compute exactly is refused here, by name, before any weight is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any  # config.json is free-form: values are checked field by field below

from local_engine.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What distinguishes one llama-like architecture from another."""

    qkv_bias: bool | None
    """True or False when the architecture fixes it, None when `attention_bias` in the config says."""
    qk_norm: bool = False
    """RMS norm over each head of q and k before the rotary embedding."""


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(qkv_bias=None),
    "MistralForCausalLM": Family(qkv_bias=False),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qkv_bias=None, qk_norm=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Shape of a llama-like decoder. Sizes are in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position: int
    is_tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            )


def architecture_of(raw: Mapping[str, Any]) -> str:
    """Name of the model class in a `config.json`."""
    names = raw.get("architectures") or []
    if not names:
        raise UnsupportedModelError("config.json has no `architectures`: it does not say which model class it is for")
    return str(names[0])


def refuse_ignored_window(raw: Mapping[str, Any]) -> None:
    """Refuse an attention window on the families where SGLang 0.5.23 ignores it (a model trained there would be
    scored differently by the two engines)."""
    architecture = architecture_of(raw)
    if architecture not in FAMILIES:
        return
    layers = raw.get("layer_types") or []
    is_windowed = any(kind != "full_attention" for kind in layers)
    if not layers:
        is_on = bool(raw.get("use_sliding_window", architecture == "MistralForCausalLM"))
        is_windowed = is_on and raw.get("sliding_window") is not None
    if is_windowed:
        raise UnsupportedModelError(
            f"{architecture} with an attention window: SGLang ignores `sliding_window` for this architecture, so the "
            "same weights would give other logprobs there. Use full attention (sliding_window null)"
        )


def rope_theta_of(raw: Mapping[str, Any]) -> float:
    """Base of the rotary embedding; any scaling of it is refused."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UnsupportedModelError(
            f'rope scaling "{kind}" is not computed by the fast decoder; set engine.backend = "transformers"'
        )
    if float(rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))) != 1.0:
        raise UnsupportedModelError('partial rotary embedding needs engine.backend = "transformers"')
    theta = rope.get("rope_theta", raw.get("rope_theta", 10_000.0))
    return float(theta)


def decoder_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """Parse `config.json`; raise `UnsupportedModelError` for anything the decoder would not compute exactly."""
    architecture = architecture_of(raw)
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(f"{architecture} is not one of {', '.join(FAMILIES)}")
    refuse_ignored_window(raw)
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f'hidden_act "{raw["hidden_act"]}" is not silu')
    num_heads = int(raw["num_attention_heads"])
    attention_bias = bool(raw.get("attention_bias", False))
    return DecoderConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // num_heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=rope_theta_of(raw),
        max_position=int(raw.get("max_position_embeddings", 2048)),
        is_tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.qkv_bias is None else False,
        mlp_bias=bool(raw.get("mlp_bias", False)) if architecture == "LlamaForCausalLM" else False,
        qk_norm=family.qk_norm,
    )
