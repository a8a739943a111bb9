"""What an estimator that tells turns apart is given. J trajectories, K turns."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from learner.advantages.shaping import RewardOptions, turn_penalty
from learner.layout import TokenLayout
from longturn.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnInputs:
    """The kept trajectories, in the order of the layout, with their shaped returns."""

    trajectories: tuple[Trajectory, ...]
    returns_J: Tensor
    layout: TokenLayout
    reward: RewardOptions = field(default_factory=RewardOptions)

    @property
    def penalties(self) -> list[list[float]]:
        """What `reward` takes off per turn, for each trajectory."""
        return [[turn_penalty(turn, self.reward) for turn in trajectory.turns] for trajectory in self.trajectories]

    def per_turn(self, values: list[list[float]]) -> Tensor:
        """Numbers of each trajectory's turns as one tensor of the K turns."""
        return torch.tensor([value for row in values for value in row], dtype=self.returns_J.dtype)


TurnAdvantage = Callable[[TurnInputs], Tensor]
"""Gives one advantage per turn, K in all."""
