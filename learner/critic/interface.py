"""What a training step needs of a critic, and the step without one. N trained tokens of the kept groups, n of a pass.

Order of a step: `values`, then advantages and targets from them, then inside `apply_update` one `begin`, a
`loss_beside` for every pass of the policy, `is_finite`, `apply` if the step is taken, and `end`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from learner.batch import BatchTensors
from learner.critic.estimate import Values, ValueTerms


class Critic(Protocol):
    """Learns what an episode is still worth."""

    def values(self, kept: BatchTensors, *, on_row: Callable[[], None]) -> Values | None:
        """What it says before the update; None without a critic."""
        ...

    def holds_policy(self, training_step: int) -> bool:
        """Whether the policy stays as it is in this step."""
        ...

    def begin(
        self, kept: BatchTensors, terms: ValueTerms | None, *, training_step: int, on_row: Callable[[], None]
    ) -> None:
        """Form the gradients that do not come out of the policy's own passes."""
        ...

    def loss_beside(self, hidden_nD: Tensor, tokens: slice) -> Tensor | float:
        """What is added to the policy's loss on some tokens, from the hidden states before them."""
        ...

    def is_finite(self) -> bool:
        """Whether loss and gradients are; no gradient is added after this call."""
        ...

    def apply(self, training_step: int) -> None:
        """Make the step, and the further ones that the settings ask for."""
        ...

    def end(self) -> None:
        """Forget the batch and its gradients."""
        ...

    @property
    def measures(self) -> Mapping[str, float | None]:
        """What the last step was like, by metric name."""
        ...

    def to_tensors(self) -> dict[str, Tensor]:
        """Parameters and optimizer, for a checkpoint."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `to_tensors` gave; ValueError if it is another critic's."""
        ...


class NoCritic:
    """A method without one."""

    @property
    def measures(self) -> Mapping[str, float | None]:
        """Nothing."""
        return {}

    def values(self, kept: BatchTensors, *, on_row: Callable[[], None]) -> None:
        """None."""

    def holds_policy(self, training_step: int) -> bool:
        """Never."""
        return False

    def begin(
        self, kept: BatchTensors, terms: ValueTerms | None, *, training_step: int, on_row: Callable[[], None]
    ) -> None:
        """Nothing."""

    def loss_beside(self, hidden_nD: Tensor, tokens: slice) -> float:
        """Nothing."""
        return 0.0

    def is_finite(self) -> bool:
        """Nothing can break."""
        return True

    def apply(self, training_step: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def to_tensors(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing: what a critic that is no longer wanted left behind is not read."""


NO_CRITIC = NoCritic()
