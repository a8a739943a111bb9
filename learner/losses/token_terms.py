"""Constants of each token, fixed from the whole step before the first row goes backward. N tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from learner.losses.correction import Interpolation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTerms:
    """All flat and of one length; absent ones belong to methods that are off."""

    advantages_N: Tensor
    anchor_logprobs_N: Tensor
    correction_weights_N: Tensor
    policy_weights_N: Tensor
    entropy_weights_N: Tensor
    reference_logprobs_N: Tensor | None = None
    """Logprobs of the reference policy, for a KL in the loss."""
    entropy_references_N: Tensor | None = None
    """Reference entropy of each token, NaN where it has none; absent: the step's holds for all."""
    anchor_kl_N: Tensor | None = None
    """Weight of |log ratio to the anchor| (KL-Cov)."""
    interpolation: Interpolation | None = None
    """Stands for anchor and correction weights where they follow from the update's own forward pass."""

    def __post_init__(self) -> None:
        lengths = {tensor.shape for tensor in self._tensors().values()}
        if len(lengths) != 1:
            raise ValueError(f"token terms of different shapes: {sorted(map(tuple, lengths))}")

    def correction_at(self, logprobs_N: Tensor) -> tuple[Tensor, Tensor]:
        """Anchor and correction weight of every token at these policy logprobs; without gradient."""
        if self.interpolation is not None:
            return self.interpolation.at(logprobs_N)
        return self.anchor_logprobs_N, self.correction_weights_N

    def take(self, index_N: Tensor | slice) -> TokenTerms:
        """The terms of some tokens, with their weights unchanged."""
        taken = {name: tensor[index_N] for name, tensor in self._tensors().items()}
        return TokenTerms(**taken, interpolation=self.interpolation and self.interpolation.take(index_N))

    def to(self, device: torch.device) -> TokenTerms:
        """The same on another device."""
        moved = {name: tensor.to(device) for name, tensor in self._tensors().items()}
        return TokenTerms(**moved, interpolation=self.interpolation and self.interpolation.to(device))

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}
