"""What both forms of a critic share: parameters, an optimizer, a rate and a clip. n tokens of a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from learner.critic.estimate import ValueTerms
from learner.gradients import add_gradients
from learner.losses.value import clipped_value_loss, explained_variance
from learner.ranks import Ranks
from learner.schedule import RateSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptions:
    """How a critic learns."""

    schedule: RateSchedule
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float
    value_clip: float | None
    """How far a value may move from what it was before the step; absent: no clip."""
    warmup_steps: int
    """Training steps in which only the critic learns."""
    num_updates: int = 1
    """Optimizer steps per batch."""
    coefficient: float = 1.0
    """Weight of the value loss beside the policy's, where they share a trunk."""


class ValueHead(nn.Module):
    """A linear reading of hidden states, zero at the start: advantages are then the discounted returns."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """One value per state, in float32 or wider."""
        return self.linear(hidden_TD.to(self.linear.weight.dtype))[:, 0]


class CriticCore:
    """One module, its optimizer, and what its last step was like."""

    def __init__(self, module: nn.Module, options: CriticOptions, ranks: Ranks) -> None:
        self.options = options
        self.measures: dict[str, float | None] = {}
        self._module = module
        self._ranks = ranks
        self._loss = torch.zeros((), dtype=torch.float64)
        self._optimizer = torch.optim.AdamW(
            module.parameters(),
            lr=options.schedule.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            weight_decay=options.weight_decay,
        )

    def loss(self, values_n: Tensor, terms: ValueTerms, tokens: slice) -> Tensor:
        """Weighted loss of some tokens; counted for the measures."""
        old_n, targets_n, weights_n = (
            each[tokens].to(values_n.device) for each in (terms.old_values_N, terms.targets_N, terms.weights_N)
        )
        losses_n = clipped_value_loss(values_n, old_n, targets_n, clip=self.options.value_clip)
        loss = (losses_n * weights_n).sum()
        self._loss += loss.item()
        return loss

    def observe(self, terms: ValueTerms, training_step: int) -> None:
        """Note how well the values before the step explain their targets."""
        mask_N = terms.weights_N > 0
        values, targets = terms.old_values_N[mask_N].double(), terms.targets_N[mask_N].double()
        self.measures = {
            "learner/critic/explained_variance": explained_variance(values, targets, torch.ones_like(values)),
            "learner/critic/value_mean": values.mean().item() if values.numel() else None,
            "learner/critic/target_mean": targets.mean().item() if targets.numel() else None,
            "learner/critic/valued_tokens": int(mask_N.sum()),
            "learner/critic/warms_up": int(training_step < self.options.warmup_steps),
        }

    def settle(self) -> bool:
        """Sum loss and gradients over the ranks, clip; whether they are finite."""
        add_gradients(self._ranks, list(self._module.parameters()))
        self._ranks.add([self._loss])
        norm = nn.utils.clip_grad_norm_(self._module.parameters(), self.options.max_grad_norm).item()
        loss = self._loss.item()
        self._loss.zero_()
        self.measures |= {"learner/critic/value_loss": loss, "learner/critic/gradient_norm": norm}
        return math.isfinite(loss) and math.isfinite(norm)

    def step(self, training_step: int) -> None:
        """One optimizer step at this training step's rate."""
        rate = self.options.schedule.rate(training_step)
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = rate
        self._optimizer.step()
        self.measures["learner/critic/learning_rate"] = rate
        self.clear()

    def clear(self) -> None:
        """Drop gradients and what was counted."""
        self._optimizer.zero_grad(set_to_none=True)
        self._loss.zero_()

    def to_tensors(self) -> dict[str, Tensor]:
        """Parameters and optimizer state under the parameters' names."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._module.named_parameters():
            tensors[f"parameter/{name}"] = parameter.detach().contiguous()
            for part, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{name}/{part}"] = value.contiguous()
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `to_tensors` gave; ValueError if the names or shapes are another module's."""
        parameters = dict(self._module.named_parameters())
        found = {
            key.removeprefix("parameter/"): value for key, value in tensors.items() if key.startswith("parameter/")
        }
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        if {name: value.shape for name, value in found.items()} != shapes:
            raise ValueError("it holds another critic's parameters")
        state: dict[int, dict[str, Tensor]] = {}
        for number, (name, parameter) in enumerate(parameters.items()):
            with torch.no_grad():
                parameter.copy_(found[name])
            prefix = f"optimizer/{name}/"
            parts = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            if parts:
                state[number] = parts
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
