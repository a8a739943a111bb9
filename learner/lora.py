"""Low-rank adapters by peft (the extra `lora`): trained beside frozen weights, published inside them.

The merged weights are computed anew for each publication and never put into the module: merging and unmerging in place
would leave a rounding error in the frozen weights each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longturn.errors import ConfigError

if TYPE_CHECKING:
    from learner.config import LoraConfig

_NAME = "default"
_BASE = ".base_layer."
_MARK = ".lora_"


class Adapter:
    """The adapter inside a module."""

    def __init__(self, module: nn.Module, layers: Mapping[str, Any]) -> None:
        self._module = module
        self._layers = layers

    def merged_weights(self) -> dict[str, Tensor]:
        """The module's state without traces of the adapter, its product added to the weights it belongs to."""
        merged: dict[str, Tensor] = {}
        for name, tensor in self._module.state_dict().items():
            if _MARK not in name:
                merged[name.replace(_BASE, ".")] = tensor
        with torch.no_grad():
            for name, layer in self._layers.items():
                merged[f"{name}.weight"] = layer.get_base_layer().weight + layer.get_delta_weight(_NAME)
        return merged

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The frozen weights alone, in this block."""
        for layer in self._layers.values():
            layer.enable_adapters(enabled=False)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.enable_adapters(enabled=True)

    def to_tensors(self) -> dict[str, Tensor]:
        """The adapter's own tensors, for a checkpoint."""
        return {name: each.detach().contiguous() for name, each in self._parameters().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `to_tensors` gave; ValueError if it is another adapter's."""
        parameters = self._parameters()
        if {name: each.shape for name, each in tensors.items()} != {name: p.shape for name, p in parameters.items()}:
            raise ValueError("it holds an adapter of another rank or of other layers")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self._module.named_parameters() if _MARK in name}


def add_adapter(module: nn.Module, config: LoraConfig, *, seed: int) -> Adapter:
    """Put an adapter into a model and freeze everything else; ConfigError if no layer bears a wanted name."""
    # Imported here: an extra that only these runs need. ModuleNotFoundError names the extra (longturn.extras).
    from peft import LoraConfig as PeftLoraConfig  # pyright: ignore[reportMissingImports]  # an optional extra
    from peft import inject_adapter_in_model  # pyright: ignore[reportMissingImports]  # an optional extra
    from peft.tuners.lora import LoraLayer  # pyright: ignore[reportMissingImports]  # an optional extra

    torch.manual_seed(seed)
    settings = PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # annotated int, used as a factor
        lora_dropout=0.0,
        target_modules=list(config.targets) if config.targets else "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(settings, module, adapter_name=_NAME)
    except ValueError as error:
        raise ConfigError(f"learner.lora.targets: {error}") from error
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(_MARK in name)
    layers = {name: each for name, each in module.named_modules() if isinstance(each, LoraLayer)}
    return Adapter(module, layers)
