"""Settings of the engine: table `[engine]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import SecretStr

from longturn.config import Config

Count = Annotated[int, Ge(1)]


class EngineConfig(Config):
    """The embedded engine."""

    model_path: Path
    """Hugging Face model folder to serve first: config.json, safetensors, tokenizer.json."""
    weights_root: Path | None = None
    """Folder below which /update_weights_from_disk may load; unset: no weights are loaded over HTTP."""
    weight_version: str = "default"
    """Name of the weights in `model_path`, until the first update."""
    host: str = "127.0.0.1"
    """Address to bind. Off loopback a key is demanded."""
    port: Annotated[int, Ge(0), Le(65535)] = 30000
    """Port to bind; 0 chooses a free one."""
    api_key: SecretStr = SecretStr("")
    """Key that requests must carry as `Authorization: Bearer KEY`; empty: `api_key_file`, then the environment variable
    LONGTURN_ENGINE_KEY, then no key."""
    api_key_file: Path | None = None
    """File that holds the key."""
    backend: Literal["auto", "decoder", "transformers"] = "auto"
    """`decoder`: the fast one, llama-like architectures only. `transformers`: any causal model, slower. `auto`: the
    fast one where the architecture allows it."""
    device: str = "cpu"
    """`cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute and cache dtype; `auto` follows config.json, where it names one of these two."""
    num_threads: Count = 1
    """Torch threads. More than one pays only on idle cores."""
    context_tokens: Annotated[int, Ge(0)] = 0
    """Longest prompt plus completion; 0: the model's own limit, at most 4,096."""
    max_running_requests: Count = 64
    """Requests that decode together."""
    max_total_tokens: Annotated[int, Ge(0)] = 0
    """Size of the key-value memory, in whole slots of `context_tokens`; 0: two slots per running request, so that every
    episode keeps its prefix between two turns."""
    max_queued_requests: Count = 4096
    """Requests that may wait beyond the running ones; more are answered with 503."""
    prefill_tokens_per_step: Annotated[int, Ge(16)] = 512
    """Prompt tokens computed beside one decode step: bounds how long a long prompt delays running requests."""
    max_request_bytes: Annotated[int, Ge(65_536)] = 64 * 2**20
    """Largest HTTP body."""
    skip_tokenizer_init: bool = False
    """Serve token ids only: no text prompts, no text in replies, no stop strings."""
    sampling_seed: int | None = None
    """Seed of requests that bring none, by order of arrival; unset: random."""
