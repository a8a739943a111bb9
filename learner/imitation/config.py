"""Settings of `longturn learn --imitate`: table `[imitate]`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from longturn.config import Config


class TokenizerConfig(Config):
    """The tokenizer that is trained when none is given."""

    vocab_size: int = Field(default=1536, ge=300)
    """Entries, tags and the 256 bytes included."""
    isolate: tuple[str, ...] = (r"(?:\bgo | from | via | )?\b(?:north|south|east|west)\b",)
    """Regular expressions whose matches become pieces of their own, so that no longer piece swallows them."""


class ModelConfig(Config):
    """The Llama model that is made when none is given. Full attention: engines differ in how they treat windows."""

    hidden_size: int = Field(default=96, ge=8)
    """Width."""
    num_layers: int = Field(default=2, ge=1)
    """Blocks."""
    num_heads: int = Field(default=3, ge=1)
    """Attention heads; must divide hidden_size."""
    num_kv_heads: int | None = Field(default=None, ge=1)
    """Heads of keys and values; absent: as many as num_heads, which they must divide. Fewer make decoding cheaper."""
    intermediate_size: int = Field(default=256, ge=8)
    """Width of the feed-forward part."""
    rope_theta: float = Field(default=10_000.0, gt=1)
    """Base of the rotary positions."""
    max_position_embeddings: int = Field(default=4096, ge=64)
    """Longest sequence in tokens."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden_size % self.num_heads or (self.hidden_size // self.num_heads) % 2:
            raise ValueError(f"hidden_size {self.hidden_size} does not split into {self.num_heads} heads of even width")
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        return self


class ImitateConfig(Config):
    """Imitation of demonstrations by cross-entropy on reasoning and action."""

    out: Path = Path("warmstart")
    """Folder that receives the policy: config, safetensors, tokenizer."""
    seed: int = Field(default=0, ge=0)
    """Fixes initial weights and the order of the demonstrations."""
    base_model: Path | None = None
    """Model folder to start from; absent: a model is made as `model` says."""
    tokenizer_path: Path | None = None
    """Folder or tokenizer.json to use; absent: the base model's, else one is trained on the demonstrations."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer that is trained when none is given."""
    model: ModelConfig = ModelConfig()
    """The model that is made when none is given."""
    steps: int = Field(default=700, ge=1)
    """Updates."""
    short_steps: int = Field(default=400, ge=0)
    """First updates, which see windows of episodes only: the same is learned for a fifth of the time."""
    rows_per_step: int = Field(default=4, ge=1)
    """Windows per update."""
    short_tokens: int = Field(default=300, ge=16)
    """Length of a window at most."""
    whole_rows_per_step: int = Field(default=1, ge=0)
    """Whole episodes per update after the first `short_steps`, beside the windows: they teach long contexts."""
    warmup_steps: int = Field(default=20, ge=0)
    """Updates over which the rates rise."""
    min_rate_ratio: float = Field(default=0.05, ge=0, le=1)
    """Rates fall linearly to this share."""
    muon_rate: float = Field(default=0.02, gt=0)
    """Learning rate of Muon, which moves the matrices."""
    adamw_rate: float = Field(default=3e-3, gt=0)
    """Learning rate of AdamW, which moves the rest."""
    held_out_episodes: int = Field(default=16, ge=1)
    """Demonstrations, evenly spread over the file, that are kept from training for the gate."""
    gate_min_probability: float = Field(default=0.5, ge=0, le=1)
    """Least mean probability of every kind of action, with the reasoning before it, on held-out turns; a rare action
    that is not learned makes success impossible, however low the loss."""
    gate_min_turns: int = Field(default=3, ge=1)
    """Kinds with fewer held-out turns are reported, not gated."""
    num_threads: int = Field(default=1, ge=1)
    """Threads of torch."""
