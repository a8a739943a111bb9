"""Generalised advantage estimation over the model's own tokens, over turns, and RAGEN's two-level form.

Sequences hold trained tokens only, so observation tokens are skipped by construction: reward, value and accumulator
pass straight from one model token to the next. Episodes end without bootstrap unless `bootstrap` says otherwise.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def gae(
    rewards: Sequence[float], values: Sequence[float], *, discount: float, smoothing: float, bootstrap: float = 0.0
) -> tuple[float, ...]:
    """Advantage of every position of one sequence, of tokens or of turns; returns are advantage + value."""
    if len(rewards) != len(values):
        raise ValueError(f"{len(rewards)} rewards for {len(values)} values")
    advantages: list[float] = []
    carried, next_value = 0.0, bootstrap
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + discount * next_value - value + discount * smoothing * carried
        advantages.append(carried)
        next_value = value
    return tuple(reversed(advantages))


def two_level_gae(
    turn_rewards: Sequence[float],
    turn_values: Sequence[Sequence[float]],
    *,
    turn_discount: float = 0.95,
    discount: float = 1.0,
    smoothing: float = 1.0,
    bootstrap: float = 0.0,
) -> tuple[tuple[float, ...], ...]:
    """Per turn, the advantages of its tokens: GAE over turns at their last tokens, then inside each turn.

    The turn's own return is the reward of its last token, and no value crosses a turn's end. Turns are given;
    the released code finds them by non-zero reward and so merges a turn of reward 0 with the next.
    """
    last_values = [values[-1] for values in turn_values]
    over_turns = gae(turn_rewards, last_values, discount=turn_discount, smoothing=smoothing, bootstrap=bootstrap)
    advantages: list[tuple[float, ...]] = []
    for values, advantage in zip(turn_values, over_turns, strict=True):
        rewards = [0.0] * (len(values) - 1) + [advantage + values[-1]]
        advantages.append(gae(rewards, values, discount=discount, smoothing=smoothing))
    return tuple(advantages)


def whiten(advantages_N: Tensor, mask_N: Tensor) -> Tensor:
    """Mean 0 and variance 1 (ddof 1, 1e-8 under the root) over masked tokens; 0 elsewhere."""
    mask_N = mask_N.bool()
    chosen = advantages_N[mask_N]
    whitened_N = torch.zeros_like(advantages_N)
    if chosen.numel() > 1:
        whitened_N[mask_N] = (chosen - chosen.mean()) * (chosen.var() + 1e-8).rsqrt()
    return whitened_N
