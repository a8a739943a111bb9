"""A value head on the policy's own hidden states. Its loss is sent backward with the policy's, pass by pass.

The head has an optimizer and a rate of its own; the trunk moves with the policy's. In the warm-up the trunk is held and
the head alone learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from learner.batch import BatchTensors
from learner.critic.core import CriticCore, CriticOptions, ValueHead
from learner.critic.estimate import Values, ValueTerms
from learner.critic.reading import read_values
from learner.model import PolicyModel
from learner.passes import PassOptions


class SharedTrunkCritic:
    """A value head beside the language-model head."""

    def __init__(self, policy: PolicyModel, options: CriticOptions, *, passes: PassOptions) -> None:
        self._policy = policy
        self._head = ValueHead(policy.hidden_size).to(policy.device)
        self._core = CriticCore(self._head, options, passes.ranks)
        self._passes = passes
        self._terms: ValueTerms | None = None
        self._is_settled = False
        self._is_finite = True

    def values(self, kept: BatchTensors, *, on_row: Callable[[], None]) -> Values:
        """Values before the update, without gradients."""
        policy = self._policy
        return read_values(policy.body, self._head, kept, self._passes, device=policy.device, on_row=on_row)

    def holds_policy(self, training_step: int) -> bool:
        """In the warm-up."""
        return training_step < self._core.options.warmup_steps

    def begin(
        self, kept: BatchTensors, terms: ValueTerms | None, *, training_step: int, on_row: Callable[[], None]
    ) -> None:
        """Take the terms; in the warm-up form the head's gradient. ValueError without terms."""
        if terms is None:
            raise ValueError("a critic needs value terms")
        self._core.clear()
        self._core.observe(terms, training_step)
        self._terms = terms
        self._is_settled = False
        if not self.holds_policy(training_step):
            return
        for rows in self._policy.passes(kept):
            with torch.no_grad():
                hidden_nD = self._policy.hidden_before(rows)
            self._core.loss(self._head(hidden_nD), terms, rows.tokens).backward()
            on_row()

    def loss_beside(self, hidden_nD: Tensor, tokens: slice) -> Tensor:
        """The weighted value loss of some tokens; its gradient reaches the trunk."""
        if self._terms is None:
            raise RuntimeError("no step was begun")
        return self._core.options.coefficient * self._core.loss(self._head(hidden_nD), self._terms, tokens)

    def is_finite(self) -> bool:
        """Of the head; the trunk's gradient is the policy's."""
        if not self._is_settled:
            self._is_finite = self._core.settle()
            self._is_settled = True
        return self._is_finite

    def apply(self, training_step: int) -> None:
        """Move the head."""
        self._core.step(training_step)

    def end(self) -> None:
        """Forget the step."""
        self._core.clear()
        self._terms = None

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
