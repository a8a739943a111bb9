"""GiGPO (Feng et al. 2025): the group advantage of the episode plus one among turns that start from one observation.

K turns, J trajectories. Statistics of the episode part are over trajectories; the released code's variant, over turn
rows, is `episode_over_turns`, where long trajectories count more.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from learner.advantages.dr_grpo import dr_grpo
from learner.advantages.group_moments import group_sizes
from learner.advantages.grpo import grpo
from learner.layout import TokenLayout


def discounted_returns(rewards: Sequence[float], *, discount: float = 0.95) -> tuple[float, ...]:
    """Return of every turn of one trajectory from its turn rewards."""
    returns: list[float] = []
    value = 0.0
    for reward in reversed(rewards):
        value = reward + discount * value
        returns.append(value)
    return tuple(reversed(returns))


def anchor_index(observations: Sequence[Hashable], group_index_K: Tensor) -> Tensor:
    """Number of each turn's anchor: equal where group and the observation before the turn are equal."""
    keys = list(zip(group_index_K.tolist(), observations, strict=True))
    number_by_key = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return torch.tensor([number_by_key[key] for key in keys], dtype=torch.int64)


def gigpo(
    returns_J: Tensor,
    turn_returns_K: Tensor,
    anchor_index_K: Tensor,
    layout: TokenLayout,
    *,
    omega: float = 1.0,
    divide_by_std: bool = False,
    episode_over_turns: bool = False,
) -> Tensor:
    """A_episode + omega * A_step for each of the K turns."""
    normalise = grpo if divide_by_std else dr_grpo
    if episode_over_turns:
        episode_K = normalise(returns_J[layout.trajectory_index_K], layout.group_index_K)
    else:
        episode_K = normalise(returns_J, layout.group_index_J)[layout.trajectory_index_K]
    # A turn alone at its anchor has nothing to be compared with, unlike an episode alone in its group.
    is_alone_K = group_sizes(anchor_index_K, turn_returns_K) == 1
    step_K = normalise(turn_returns_K, anchor_index_K).masked_fill(is_alone_K, 0.0)
    return episode_K + omega * step_K
