"""Layouts and flat tensors from lists of trajectories of turns of tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learner.layout import TokenLayout

Nested = Sequence[Sequence[Sequence[Any]]]


def flatten(nested: Nested) -> Tensor:
    return torch.tensor([value for turns in nested for tokens in turns for value in tokens], dtype=torch.float64)


def layout_of(nested: Nested, groups: Sequence[int] | None = None) -> TokenLayout:
    turns = [(trajectory, tokens) for trajectory, turns in enumerate(nested) for tokens in turns]
    turn_of_token = [index for index, (_, tokens) in enumerate(turns) for _ in tokens]
    return TokenLayout(
        turn_index_N=torch.tensor(turn_of_token, dtype=torch.int64),
        trajectory_index_K=torch.tensor([trajectory for trajectory, _ in turns], dtype=torch.int64),
        group_index_J=torch.tensor(groups or [0] * len(nested), dtype=torch.int64),
    )
