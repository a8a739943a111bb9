"""From a critic's values to advantages and targets of a step. N trained tokens, J trajectories.

Rewards are put on tokens: what a turn earns, less its penalties, falls on its last trained token, and what the shaped
return holds beyond that, such as the soft limit on length, on the last token of the episode. A turn without a trained
token hands its reward to the token before it; one before the first trained token is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from learner.advantages.gae import whiten
from learner.advantages.shaping import RewardOptions, turn_penalty
from learner.advantages.value_based import GaeOptions, Turns, ValueAdvantage, ValuedEpisode
from learner.batch import BatchTensors
from learner.losses.aggregation import token_weights
from longturn.records import EpisodeStatus, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Values:
    """Value before each trained token, and after the last one of each trajectory."""

    values_N: Tensor
    ends_J: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueTerms:
    """What the critic's loss needs; `weights_N` is a mean over the tokens that have a target and are in the mask."""

    advantages_N: Tensor
    old_values_N: Tensor
    targets_N: Tensor
    weights_N: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """How values become advantages."""

    estimator: ValueAdvantage
    gae: GaeOptions = field(default_factory=GaeOptions)
    whiten: bool = True
    """Whether advantages are brought to mean 0 and variance 1 over the step's tokens."""
    bootstrap_on_truncation: bool = False
    """True takes an episode that was cut by a turn or token limit as going on: its end is worth what the critic says of
    the state after its last token. False: the cut is its outcome."""


def value_terms(
    kept: BatchTensors,
    values: Values,
    options: ValueOptions,
    *,
    reward: RewardOptions,
    mask_N: Tensor,
    token_costs_N: Tensor | None = None,
) -> ValueTerms:
    """Advantages and targets of the kept groups; `token_costs_N` are taken off the reward of each token."""
    advantages: list[float] = []
    targets: list[float | None] = []
    for episode in _episodes(kept, values, options, reward, token_costs_N):
        estimate = options.estimator(episode, options.gae)
        advantages.extend(estimate.advantages)
        targets.extend(estimate.targets)
    has_target_N = torch.tensor([target is not None for target in targets], dtype=torch.bool)
    advantages_N = torch.tensor(advantages, dtype=values.values_N.dtype)
    return ValueTerms(
        advantages_N=whiten(advantages_N, mask_N) if options.whiten else advantages_N,
        old_values_N=values.values_N,
        targets_N=torch.tensor([target or 0.0 for target in targets], dtype=values.values_N.dtype),
        weights_N=token_weights("token_mean", kept.layout, mask_N.bool() & has_target_N),
    )


def _episodes(
    kept: BatchTensors,
    values: Values,
    options: ValueOptions,
    reward: RewardOptions,
    token_costs_N: Tensor | None,
) -> Iterator[ValuedEpisode]:
    num_tokens_K = torch.bincount(kept.layout.turn_index_N, minlength=kept.layout.num_turns).tolist()
    returns, ends = kept.returns_J.tolist(), values.ends_J.tolist()
    flat_values = values.values_N.tolist()
    costs = [0.0] * len(flat_values) if token_costs_N is None else token_costs_N.tolist()
    turn, token = 0, 0
    for number, trajectory in enumerate(kept.trajectories):
        sizes = num_tokens_K[turn : turn + len(trajectory.turns)]
        turn += len(trajectory.turns)
        end = token + sum(sizes)
        if end > token:
            rewards = rewards_on_tokens(trajectory, sizes, shaped_return=returns[number], reward=reward)
            paid = [paid - cost for paid, cost in zip(rewards, costs[token:end], strict=True)]
            is_cut = trajectory.status is EpisodeStatus.TRUNCATED and options.bootstrap_on_truncation
            yield ValuedEpisode(
                rewards=_by_turn(paid, sizes),
                values=_by_turn(flat_values[token:end], sizes),
                bootstrap=ends[number] if is_cut else 0.0,
            )
        token = end


def rewards_on_tokens(
    trajectory: Trajectory, sizes: Sequence[int], *, shaped_return: float, reward: RewardOptions
) -> list[float]:
    """Reward of each trained token; `sizes` says how many of them each turn has."""
    rewards = [0.0] * sum(sizes)
    beyond, position = shaped_return, 0
    for turn, size in zip(trajectory.turns, sizes, strict=True):
        position += size
        earned = turn.reward - turn_penalty(turn, reward)
        beyond -= earned
        if position:
            rewards[position - 1] += earned
    rewards[-1] += beyond
    return rewards


def _by_turn(values: Sequence[float], sizes: Sequence[int]) -> Turns:
    turns: list[tuple[float, ...]] = []
    start = 0
    for size in sizes:
        if size:
            turns.append(tuple(values[start : start + size]))
        start += size
    return tuple(turns)
