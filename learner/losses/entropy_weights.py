"""Weight of the entropy term at every token, and the reference each is measured against. N tokens, K turns.

All of it is fixed before the update. The mean's own weights come from `learner.losses.aggregation`; what varies over an
episode multiplies them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.layout import TokenLayout, sum_by, turn_positions
from learner.losses.aggregation import token_weights
from learner.losses.epo import EpoOptions, EpoStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntropyInputs:
    """Entropies before the update, the final mask, and where each token sits."""

    entropies_N: Tensor
    mask_N: Tensor
    layout: TokenLayout


TurnScale = Callable[[EntropyInputs], Tensor]
"""Gives one factor per turn, K in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecay:
    """EPO-Decay over the turns of an episode: from 1 at its first turn down to `floor` at its last."""

    floor: float = 0.0

    def __call__(self, inputs: EntropyInputs) -> Tensor:
        """One factor per turn."""
        layout = inputs.layout
        positions_K = turn_positions(layout).to(inputs.entropies_N.dtype)
        ones_K = torch.ones_like(positions_K)
        num_turns_K = sum_by(ones_K, layout.trajectory_index_K, layout.num_trajectories)[layout.trajectory_index_K]
        return 1.0 - (1.0 - self.floor) * positions_K / (num_turns_K - 1).clamp(min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCap:
    """A bonus only for turns whose mean entropy lies below `cap`: the gradient of min(mean H, cap) per turn."""

    cap: float
    """In nats per token."""

    def __post_init__(self) -> None:
        if self.cap <= 0:
            raise ValueError(f"cap must be > 0 nats, got {self.cap}")

    def __call__(self, inputs: EntropyInputs) -> Tensor:
        """1 below the cap, 0 above it, per turn."""
        layout, mask_N = inputs.layout, inputs.mask_N.to(inputs.entropies_N.dtype)
        sums_K = sum_by(inputs.entropies_N * mask_N, layout.turn_index_N, layout.num_turns)
        counts_K = sum_by(mask_N, layout.turn_index_N, layout.num_turns)
        return (sums_K / counts_K.clamp(min=1) < self.cap).to(mask_N.dtype)


def entropy_weights(inputs: EntropyInputs, options: EpoOptions, step: EpoStep, turn_scale: TurnScale | None) -> Tensor:
    """Weights of the entropy term: the mean of the options, scaled by the step and, if asked for, per turn."""
    weights_N = token_weights(options.average, inputs.layout, inputs.mask_N) * step.scale
    return weights_N if turn_scale is None else weights_N * turn_scale(inputs)[inputs.layout.turn_index_N]


def token_references(layout: TokenLayout, step: EpoStep) -> Tensor | None:
    """Reference of every token by its turn index, NaN where there is none; None if one holds for all."""
    if step.turn_references is None:
        return None
    positions_K = turn_positions(layout)
    num_turns = int(positions_K.max()) + 1 if positions_K.numel() else 0
    known = [math.nan if value is None else value for value in step.turn_references[:num_turns]]
    references = torch.tensor([*known, *[math.nan] * (num_turns - len(known))])
    return references[positions_K][layout.turn_index_N]
