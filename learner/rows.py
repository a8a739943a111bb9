"""Rows of token ids from trajectories: what the model is fed and which of its tokens are trained.

Built from ids only, never from text. In append mode a trajectory is one row. In window mode every turn brings its whole
prompt: if that prompt extends the row so far, the row goes on, else a new row starts and the break is counted. A token
is trained iff the policy sampled it, the engine gave it a finite logprob, and its turn is trained; synthetic ends are
not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from longturn.errors import LongturnError
from longturn.records import RenderMode, Trajectory, TrajectoryIdentity, Turn


class RowError(LongturnError):
    """A trajectory cannot be made into rows; the message names the episode."""

    reason = "BAD_ROW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence for the model.

    `positions[i]` is the place in `ids` of the i-th trained token (never 0: something must predict it),
    `turn_indices[i]` its turn within the trajectory, `behavior_logprobs[i]` the engine's logprob, `policy_versions[i]`
    who sampled it.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    turn_indices: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.positions), len(self.turn_indices), len(self.behavior_logprobs), len(self.policy_versions)}
        if len(lengths) != 1:
            raise ValueError("the arrays of a row differ in length")
        if any(position < 1 or position >= len(self.ids) for position in self.positions):
            raise ValueError("a trained token has no token before it, or lies outside the row")
        if not all(math.isfinite(value) for value in self.behavior_logprobs):
            raise ValueError("a trained token has no finite logprob")

    @property
    def num_trained(self) -> int:
        """Number of trained tokens."""
        return len(self.positions)

    @property
    def response_mask(self) -> tuple[int, ...]:
        """1 at trained tokens, one number per id."""
        trained = set(self.positions)
        return tuple(int(index in trained) for index in range(len(self.ids)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRows:
    """All rows of one trajectory, in order; breaks are rows beyond the first."""

    rows: tuple[Row, ...]

    @property
    def num_breaks(self) -> int:
        """How often a prompt did not extend what came before."""
        return max(0, len(self.rows) - 1)


@dataclass(slots=True)
class _Draft:
    ids: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    turn_indices: list[int] = field(default_factory=list[int])
    behavior_logprobs: list[float] = field(default_factory=list[float])
    policy_versions: list[int] = field(default_factory=list[int])

    def add_turn(self, prompt_ids: tuple[int, ...], turn: Turn, turn_index: int) -> None:
        self.ids.extend(prompt_ids)
        start = len(self.ids)
        self.ids.extend(turn.completion_ids)
        num_trained = len(turn.completion_ids) - turn.num_synthetic_tokens if turn.is_trained else 0
        self.positions.extend(range(start, start + num_trained))
        self.turn_indices.extend([turn_index] * num_trained)
        self.behavior_logprobs.extend(turn.behavior_logprobs[:num_trained])
        versions = [span.policy_version for span in turn.policy_spans for _ in range(span.start, span.end)]
        self.policy_versions.extend(versions[:num_trained])

    def row(self) -> Row:
        return Row(
            ids=tuple(self.ids),
            positions=tuple(self.positions),
            turn_indices=tuple(self.turn_indices),
            behavior_logprobs=tuple(self.behavior_logprobs),
            policy_versions=tuple(self.policy_versions),
        )


def build_rows(trajectory: Trajectory, *, vocabulary_size: int, max_row_tokens: int) -> TrajectoryRows:
    """Rows of a trajectory; RowError, with its identity, if its ids do not fit the model or the mask would lie."""
    try:
        _check_ids(trajectory, vocabulary_size)
        rows = tuple(draft.row() for draft in _drafts(trajectory))
        longest = max(len(row.ids) for row in rows)
        if longest > max_row_tokens:
            raise ValueError(f"a row of {longest} tokens, model.max_row_tokens is {max_row_tokens}")
    except ValueError as error:
        raise RowError(f"trajectory {_name(trajectory.identity)}: {error}") from error
    return TrajectoryRows(rows=rows)


def _drafts(trajectory: Trajectory) -> list[_Draft]:
    drafts = [_Draft()]
    for turn_index, turn in enumerate(trajectory.turns):
        added = turn.prompt_ids
        if trajectory.render_mode is RenderMode.WINDOW:
            length = len(drafts[-1].ids)
            if turn.prompt_ids[:length] == tuple(drafts[-1].ids):
                added = turn.prompt_ids[length:]
            else:
                drafts.append(_Draft())
        drafts[-1].add_turn(added, turn, turn_index)
    return drafts


def _check_ids(trajectory: Trajectory, vocabulary_size: int) -> None:
    for turn_index, turn in enumerate(trajectory.turns):
        ids = (*turn.prompt_ids, *turn.completion_ids)
        if not ids:
            continue
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < vocabulary_size:
                raise ValueError(f"turn {turn_index} holds id {token_id}, the model has {vocabulary_size}")
    if trajectory.turns and not trajectory.turns[0].prompt_ids:
        raise ValueError("the first turn has no prompt")


def _name(identity: TrajectoryIdentity | None) -> str:
    if identity is None:
        return "without identity"
    return f"{identity.group_id}/{identity.member_index} attempt {identity.attempt} of run {identity.run_id}"
