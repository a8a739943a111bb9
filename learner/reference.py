"""The frozen policy that a reference KL is measured to: one forward pass without gradients per kept batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from learner.batch import BatchTensors
from learner.lora import Adapter
from learner.model import PolicyModel
from learner.passes import ONE_BY_ONE, PassOptions
from learner.update import score_rows
from longturn.errors import ConfigError


class Reference:
    """Holds the weights, on the CPU between its passes if offloaded."""

    def __init__(self, model: PolicyModel, *, device: str, offload: bool) -> None:
        self._model = model
        self._device = torch.device(device)
        self._offload = offload
        model.module.requires_grad_(False)

    def logprobs(self, kept: BatchTensors, *, temperature: float, on_row: Callable[[], None] = lambda: None) -> Tensor:
        """Logprob of every trained token, at the temperature it is trained at."""
        self._model.module.to(self._device)
        scores = score_rows(self._model, kept, temperature=temperature, on_row=on_row)
        if self._offload:
            self._model.module.to("cpu")
        return scores.logprobs_N


class BaseReference:
    """The policy without its adapter: no second copy of the weights."""

    def __init__(self, policy: PolicyModel, adapter: Adapter) -> None:
        self._policy = policy
        self._adapter = adapter

    def logprobs(self, kept: BatchTensors, *, temperature: float, on_row: Callable[[], None] = lambda: None) -> Tensor:
        """Logprob of every trained token, at the temperature it is trained at."""
        with self._adapter.switched_off():
            return score_rows(self._policy, kept, temperature=temperature, on_row=on_row).logprobs_N


def load_reference(
    folder: Path, policy: PolicyModel, *, device: str, offload: bool, passes: PassOptions = ONE_BY_ONE
) -> Reference:
    """Read a reference policy; ConfigError if it is none or reads other ids than the policy."""
    try:
        model = PolicyModel.load(folder, device="cpu" if offload else device, passes=passes)
    except ConfigError as error:
        raise ConfigError(f"learner.reference.path: {error}") from error
    if model.vocabulary_size != policy.vocabulary_size or model.tokenizer_hash != policy.tokenizer_hash:
        raise ConfigError(
            f"learner.reference.path: {folder} has another vocabulary or tokenizer than the policy; the KL compares "
            "logprobs of the same ids"
        )
    return Reference(model, device=device, offload=offload)
