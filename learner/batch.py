"""A training step's data: rows of all groups, sorted by (slot, member), with flat tensors over their trained tokens.

N trained tokens of the batch, K turns, J trajectories, G groups. Tokens are numbered in the order of the rows, so a
row's tokens are one slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from learner.advantages.shaping import RewardOptions, trajectory_return
from learner.advantages.turn_level import discounted_gains
from learner.filters.scores import GroupReturns
from learner.layout import TokenLayout
from learner.ledger.records import TakenBatch, TakenGroup
from learner.rows import Row, TrajectoryRows, build_rows
from longturn.codec import trajectory_from_bytes
from longturn.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One trajectory and what training makes of it. `gains` has one number per turn, absent without full progress."""

    trajectory: Trajectory
    rows: TrajectoryRows
    shaped_return: float
    gains: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """A complete group of the batch."""

    taken: TakenGroup
    members: tuple[Member, ...]

    @property
    def returns(self) -> GroupReturns:
        """What the filter scores."""
        gains = [member.gains for member in self.members]
        return GroupReturns(
            returns=tuple(member.shaped_return for member in self.members),
            mean_gains=None if None in gains else tuple(fmean(values) for values in gains if values),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All groups of a batch in slot order."""

    taken: TakenBatch
    groups: tuple[BatchGroup, ...]

    @property
    def members(self) -> list[Member]:
        """All trajectories, sorted by (slot, member_index)."""
        return [member for group in self.groups for member in group.members]

    @property
    def rows(self) -> list[Row]:
        """All rows in order."""
        return [row for member in self.members for row in member.rows.rows]

    def restricted_to(self, kept: Sequence[int]) -> Batch:
        """Only the groups at these positions, still in slot order."""
        return Batch(taken=self.taken, groups=tuple(self.groups[index] for index in sorted(kept)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How trajectories become training data."""

    vocabulary_size: int
    max_row_tokens: int
    reward: RewardOptions
    discount: float


def build_batch(taken: TakenBatch, options: BatchOptions) -> Batch:
    """Parse and build everything a batch holds; RowError names the trajectory that does not fit."""
    return Batch(taken=taken, groups=tuple(_group(group, options) for group in taken.groups))


def _group(taken: TakenGroup, options: BatchOptions) -> BatchGroup:
    members = tuple(_member(trajectory_from_bytes(member.data), options) for member in taken.members)
    return BatchGroup(taken=taken, members=members)


def _member(trajectory: Trajectory, options: BatchOptions) -> Member:
    return Member(
        trajectory=trajectory,
        rows=build_rows(trajectory, vocabulary_size=options.vocabulary_size, max_row_tokens=options.max_row_tokens),
        shaped_return=trajectory_return(trajectory, options.reward),
        gains=_gains(trajectory, options.discount),
    )


def _gains(trajectory: Trajectory, discount: float) -> tuple[float, ...] | None:
    progress = [trajectory.initial_progress, *(turn.progress for turn in trajectory.turns)]
    known = [value for value in progress if value is not None]
    return discounted_gains(known, discount=discount) if len(known) == len(progress) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchTensors:
    """Flat tensors over the trained tokens of some batch; `token_slices` has one slice of them per row."""

    rows: tuple[Row, ...]
    token_slices: tuple[slice, ...]
    layout: TokenLayout
    behavior_logprobs_N: Tensor
    returns_J: Tensor
    gains_K: Tensor
    has_progress_K: Tensor
    trajectories: tuple[Trajectory, ...]

    @property
    def num_tokens(self) -> int:
        """Trained tokens."""
        return self.layout.num_tokens


def tensors_of(batch: Batch) -> BatchTensors:
    """The tensors of all trained tokens, in row order."""
    rows = batch.rows
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + row.num_trained)
    gains, has_progress = _turn_values(batch)
    return BatchTensors(
        rows=tuple(rows),
        token_slices=tuple(slice(start, end) for start, end in itertools.pairwise(starts)),
        layout=_layout(batch),
        behavior_logprobs_N=torch.tensor(
            [value for row in rows for value in row.behavior_logprobs], dtype=torch.float32
        ),
        returns_J=torch.tensor([member.shaped_return for member in batch.members], dtype=torch.float32),
        gains_K=torch.tensor(gains, dtype=torch.float32),
        has_progress_K=torch.tensor(has_progress, dtype=torch.bool),
        trajectories=tuple(member.trajectory for member in batch.members),
    )


def _layout(batch: Batch) -> TokenLayout:
    turn_index: list[int] = []
    trajectory_index: list[int] = []
    group_index: list[int] = []
    for number, group in enumerate(batch.groups):
        for member in group.members:
            first_turn = len(trajectory_index)
            turn_index.extend(first_turn + turn for row in member.rows.rows for turn in row.turn_indices)
            trajectory_index.extend([len(group_index)] * len(member.trajectory.turns))
            group_index.append(number)
    return TokenLayout(
        turn_index_N=torch.tensor(turn_index, dtype=torch.int64),
        trajectory_index_K=torch.tensor(trajectory_index, dtype=torch.int64),
        group_index_J=torch.tensor(group_index, dtype=torch.int64),
    )


def _turn_values(batch: Batch) -> tuple[list[float], list[bool]]:
    gains: list[float] = []
    has_progress: list[bool] = []
    for member in batch.members:
        num_turns = len(member.trajectory.turns)
        gains.extend(member.gains if member.gains is not None else [0.0] * num_turns)
        has_progress.extend([member.gains is not None] * num_turns)
    return gains, has_progress


def tokens_of_groups(layout: TokenLayout, kept: Sequence[int]) -> Tensor:
    """Positions, among the N tokens, of those that belong to the kept groups."""
    group_index_N = layout.group_index_J[layout.trajectory_index_N]
    return torch.isin(group_index_N, torch.tensor(sorted(kept), dtype=torch.int64)).nonzero()[:, 0]
