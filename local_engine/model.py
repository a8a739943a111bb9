"""From a model folder to a scheduler that serves it."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # config.json is free-form

import torch
from torch import Tensor

from local_engine.backend import Backend
from local_engine.config import EngineConfig
from local_engine.decoder import Decoder
from local_engine.decoder_config import FAMILIES, DecoderConfig, architecture_of, decoder_config, refuse_ignored_window
from local_engine.dialect import ModelLimits
from local_engine.errors import StartError, WeightsError
from local_engine.scheduler import Scheduler
from local_engine.slots import SlotTable
from local_engine.text import TextCodec
from local_engine.weights import dtype_named, eos_token_ids, read_config, read_weights
from longturn.metrics import Metrics

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A loaded model and what the server must know of it."""

    raw_config: dict[str, Any]
    limits: ModelLimits
    codec: TextCodec | None
    scheduler: Scheduler
    num_slots: int


def load_model(config: EngineConfig, metrics: Metrics) -> Model:
    """Read the folder, build the backend, load the weights; raise `StartError` naming the setting that mends it."""
    torch.set_num_threads(config.num_threads)
    raw = read_config(config.model_path)
    refuse_ignored_window(raw)
    codec = None if config.skip_tokenizer_init else TextCodec.from_folder(config.model_path)
    context_tokens = context_tokens_of(config, raw)
    if codec is not None and codec.vocab_size > int(raw["vocab_size"]):
        raise StartError(
            f"tokenizer.json has {codec.vocab_size} tokens but the model only {raw['vocab_size']}: they do not belong "
            "together; check engine.model_path"
        )
    num_slots = num_slots_of(config, context_tokens)
    backend = build_backend(config, raw, num_slots=num_slots, slot_tokens=context_tokens)
    tensors = read_weights(config.model_path.resolve())
    backend.verify(tensors)
    backend.load(tensors)
    log_loaded(raw, backend, tensors, num_slots=num_slots, context_tokens=context_tokens)
    slots = SlotTable(num_slots=num_slots, slot_tokens=context_tokens, can_rewind=backend.can_rewind)
    scheduler = Scheduler(
        backend,
        slots,
        max_running_requests=config.max_running_requests,
        prefill_tokens_per_step=config.prefill_tokens_per_step,
        codec=codec,
        metrics=metrics,
        weight_version=config.weight_version,
    )
    limits = ModelLimits(
        vocab_size=backend.vocab_size,
        context_tokens=context_tokens,
        eos_token_ids=eos_token_ids(config.model_path, raw),
    )
    return Model(raw_config=raw, limits=limits, codec=codec, scheduler=scheduler, num_slots=num_slots)


def context_tokens_of(config: EngineConfig, raw: dict[str, Any]) -> int:
    """Longest sequence served."""
    model_limit = int(raw.get("max_position_embeddings") or DEFAULT_CONTEXT_TOKENS)
    if config.context_tokens > model_limit:
        raise StartError(f"engine.context_tokens {config.context_tokens} exceeds the model's limit of {model_limit}")
    return config.context_tokens or min(model_limit, DEFAULT_CONTEXT_TOKENS)


def num_slots_of(config: EngineConfig, context_tokens: int) -> int:
    """How many sequences the key-value memory holds."""
    if config.max_total_tokens == 0:
        return 2 * config.max_running_requests
    num_slots = config.max_total_tokens // context_tokens
    if num_slots < config.max_running_requests:
        raise StartError(
            f"engine.max_total_tokens {config.max_total_tokens} holds {num_slots} slots of {context_tokens} tokens, "
            f"fewer than engine.max_running_requests {config.max_running_requests}; raise it or lower one of the others"
        )
    return num_slots


def build_backend(config: EngineConfig, raw: dict[str, Any], *, num_slots: int, slot_tokens: int) -> Backend:
    """The fast decoder where it computes the architecture exactly, else transformers' own forward."""
    device = torch_device(config.device)
    dtype = dtype_named(config.dtype, raw)
    is_fast = config.backend == "decoder" or (config.backend == "auto" and architecture_of(raw) in FAMILIES)
    if not is_fast:
        from local_engine.transformers_backend import (
            TransformersBackend,
        )  # seconds of imports the decoder does not need

        return TransformersBackend(raw, num_slots=num_slots, device=device, dtype=dtype)
    shape = decoder_config(raw)
    check_memory(shape, num_slots * slot_tokens, device, dtype)
    return Decoder(shape, num_slots=num_slots, slot_tokens=slot_tokens, device=device, dtype=dtype)


def torch_device(name: str) -> torch.device:
    """The device, checked."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise StartError(f'engine.device "{name}" is not a device; use "cpu" or "cuda"') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StartError(f'engine.device is "{name}" but this machine has no usable GPU; set engine.device = "cpu"')
    return device


def check_memory(shape: DecoderConfig, num_tokens: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a key-value memory that would not fit into the machine's."""
    num_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * num_tokens * dtype.itemsize
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[0]
    else:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > 0.8 * available:
        raise StartError(
            f"the key-value memory would take {num_bytes / 2**30:.1f} GiB of {available / 2**30:.1f}; lower "
            "engine.context_tokens, engine.max_running_requests or engine.max_total_tokens"
        )


def refuse_other_model(folder: Path, running: dict[str, Any]) -> None:
    """Raise `WeightsError` if a weight folder brings a config.json of another model than the running one.

    Equal shapes are not enough: another rotary base or norm epsilon would load and sample quietly wrong.
    """
    if not (folder / "config.json").is_file():
        return
    offered = read_config(folder)
    ignored = {"transformers_version", "dtype", "torch_dtype", "use_cache", "_name_or_path"}
    for name in sorted((offered.keys() & running.keys()) - ignored):
        if offered[name] != running[name]:
            raise WeightsError(f"config.json there has {name} = {offered[name]!r}, the running model {running[name]!r}")


def log_loaded(
    raw: dict[str, Any], backend: Backend, tensors: dict[str, Tensor], *, num_slots: int, context_tokens: int
) -> None:
    """One visible line about what is served."""
    logger.info(
        "model loaded",
        extra={
            "architecture": architecture_of(raw),
            "backend": type(backend).__name__,
            "num_parameters": sum(tensor.numel() for tensor in tensors.values()),
            "context_tokens": context_tokens,
            "num_slots": num_slots,
        },
    )
