"""A critic with a model of its own: nothing it learns touches the policy. N trained tokens, J trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from learner.batch import BatchTensors
from learner.critic.core import CriticCore, CriticOptions, ValueHead
from learner.critic.estimate import Values, ValueTerms
from learner.critic.reading import read_values
from learner.passes import PassOptions, hidden_of, passes_of, recomputing


class OwnTrunkCritic:
    """A body, usually that of the policy before training, and a value head."""

    def __init__(
        self, body: nn.Module, hidden_size: int, options: CriticOptions, *, device: torch.device, passes: PassOptions
    ) -> None:
        self._body = body
        self._head = ValueHead(hidden_size).to(device)
        self._core = CriticCore(nn.ModuleDict({"body": body, "head": self._head}), options, passes.ranks)
        self._device = device
        self._passes = passes
        self._job: tuple[BatchTensors, ValueTerms, Callable[[], None]] | None = None
        self._is_finite = True

    def values(self, kept: BatchTensors, *, on_row: Callable[[], None]) -> Values:
        """Values before the update, without gradients."""
        return read_values(self._body, self._head, kept, self._passes, device=self._device, on_row=on_row)

    def holds_policy(self, training_step: int) -> bool:
        """In the warm-up."""
        return training_step < self._core.options.warmup_steps

    def begin(
        self, kept: BatchTensors, terms: ValueTerms | None, *, training_step: int, on_row: Callable[[], None]
    ) -> None:
        """Form the gradient of the first step; ValueError without terms."""
        if terms is None:
            raise ValueError("a critic needs value terms")
        self._core.clear()
        self._core.observe(terms, training_step)
        self._job = (kept, terms, on_row)
        self._is_finite = self._accumulate()

    def loss_beside(self, hidden_nD: Tensor, tokens: slice) -> float:
        """Nothing: the policy's hidden states are not read."""
        return 0.0

    def is_finite(self) -> bool:
        """Of the first step."""
        return self._is_finite

    def apply(self, training_step: int) -> None:
        """Make the first step, then the others, each on the whole batch; one that is not finite is the last."""
        self._core.step(training_step)
        num_updates = 1
        while num_updates < self._core.options.num_updates and self._accumulate():
            self._core.step(training_step)
            num_updates += 1
        self._core.measures["learner/critic/updates"] = num_updates

    def end(self) -> None:
        """Forget the batch."""
        self._core.clear()
        self._job = None

    @property
    def measures(self) -> Mapping[str, float | None]:
        """Of the last step."""
        return self._core.measures

    def to_tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return self._core.to_tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """From a checkpoint."""
        self._core.restore(tensors)

    def _accumulate(self) -> bool:
        if self._job is None:
            raise RuntimeError("no step was begun")
        kept, terms, on_row = self._job
        for rows in passes_of(kept, self._passes):
            with recomputing(self._body, is_on=self._passes.recompute_layers):
                hidden_TD = hidden_of(self._body, [row.ids for row in rows.rows], self._device)
            values_n = self._head(hidden_TD[torch.tensor(rows.sources, device=self._device)])
            self._core.loss(values_n, terms, rows.tokens).backward()
            on_row()
        return self._core.settle()
