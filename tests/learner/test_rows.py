"""Rows equal what the engine saw and produced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.advantages.shaping import RewardOptions
from learner.batch import BatchOptions, BatchTensors, build_batch, tensors_of
from learner.ledger.records import StoredMember, TakenBatch, TakenGroup
from learner.losses.aggregation import AGGREGATIONS, token_weights
from learner.model import PolicyModel
from learner.passes import Pass
from learner.rows import RowError, build_rows
from longturn.codec import trajectory_to_bytes
from longturn.records import (
    EndCause,
    EpisodeStatus,
    PolicySpan,
    RenderMode,
    Task,
    Trajectory,
    TrajectoryIdentity,
    Turn,
)
from tests.support.sampling_policy import load

IDS = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple)


def turn(prompt: tuple[int, ...], completion: tuple[int, ...], **changes: object) -> Turn:
    values: dict[str, object] = {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "behavior_logprobs": tuple(-1.0 - index for index in range(len(completion))),
        "policy_spans": (PolicySpan(start=0, end=len(completion), policy_version=2),),
        "action": "look",
        "observation": "dark",
        "action_valid": True,
    }
    return Turn(**(values | changes))  # type: ignore[arg-type]


def trajectory(*turns: Turn, mode: RenderMode = RenderMode.APPEND) -> Trajectory:
    return Trajectory(
        identity=TrajectoryIdentity(run_id="run", group_id="t000003.0", member_index=5, attempt=1),
        task=Task(environment="scripted", task_id="one"),
        seed=0,
        initial_observation="",
        turns=turns,
        status=EpisodeStatus.TRUNCATED,
        end_cause=EndCause.TURN_LIMIT,
        episode_return=0.0,
        score=0.0,
        success=False,
        render_mode=mode,
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(IDS, IDS, st.booleans(), st.integers(0, 2)), min_size=1, max_size=5))
def test_an_append_trajectory_is_one_row_of_exactly_its_ids(
    parts: list[tuple[tuple[int, ...], tuple[int, ...], bool, int]],
) -> None:
    turns = [
        turn(prompt, completion, is_trained=is_trained, num_synthetic_tokens=min(synthetic, len(completion)))
        for prompt, completion, is_trained, synthetic in parts
    ]
    (row,) = build_rows(trajectory(*turns), vocabulary_size=48, max_row_tokens=1000).rows
    assert row.ids == tuple(token for prompt, completion, _, _ in parts for token in (*prompt, *completion))
    expected = [
        (token, logprob, index)
        for index, played in enumerate(turns)
        if played.is_trained
        for token, logprob in list(zip(played.completion_ids, played.behavior_logprobs, strict=True))[
            : len(played.completion_ids) - played.num_synthetic_tokens
        ]
    ]
    found = [
        (row.ids[position], logprob, index)
        for position, logprob, index in zip(row.positions, row.behavior_logprobs, row.turn_indices, strict=True)
    ]
    assert found == expected
    assert sum(row.response_mask) == len(expected)


def test_a_synthetic_end_is_in_the_row_but_not_in_the_mask() -> None:
    (row,) = build_rows(
        trajectory(turn((1, 2), (3, 4, 5), num_synthetic_tokens=1)), vocabulary_size=48, max_row_tokens=9
    ).rows
    assert row.ids == (1, 2, 3, 4, 5)
    assert row.response_mask == (0, 0, 1, 1, 0)


def test_a_window_that_extends_goes_on_and_one_that_does_not_breaks_the_row() -> None:
    rows = build_rows(
        trajectory(turn((1, 2), (3,)), turn((1, 2, 3, 4), (5,)), turn((4, 5, 6), (7,)), mode=RenderMode.WINDOW),
        vocabulary_size=48,
        max_row_tokens=9,
    )
    assert [row.ids for row in rows.rows] == [(1, 2, 3, 4, 5), (4, 5, 6, 7)]
    assert [row.positions for row in rows.rows] == [(2, 4), (3,)]
    assert [row.turn_indices for row in rows.rows] == [(0, 1), (2,)]
    assert rows.num_breaks == 1


def test_every_token_keeps_the_version_that_sampled_it() -> None:
    spans = (PolicySpan(start=0, end=1, policy_version=4), PolicySpan(start=1, end=3, policy_version=5))
    (row,) = build_rows(
        trajectory(turn((1,), (2, 3, 4), policy_spans=spans)), vocabulary_size=48, max_row_tokens=9
    ).rows
    assert row.policy_versions == (4, 5, 5)


@pytest.mark.parametrize(
    ("played", "message"),
    [
        (turn((1, 99), (2,)), "id 99, the model has 48"),
        (turn((), (2,)), "first turn has no prompt"),
        (turn(tuple(range(9)), (2,)), r"model\.max_row_tokens"),
    ],
)
def test_what_does_not_fit_is_an_error_with_the_episodes_identity(played: Turn, message: str) -> None:
    with pytest.raises(RowError, match=message) as caught:
        build_rows(trajectory(played), vocabulary_size=48, max_row_tokens=9)
    assert "t000003.0/5 attempt 1" in str(caught.value)


def test_row_logprobs_equal_transformers(model_dir: Path) -> None:
    played = trajectory(turn((1, 2, 3), (4, 5)), turn((6, 7), (8, 9, 10)))
    (row,) = build_rows(played, vocabulary_size=48, max_row_tokens=99).rows
    alone = Pass(rows=(row,), tokens=slice(0, row.num_trained))
    logprobs, entropies = PolicyModel.load(model_dir).score(alone, temperature=0.7)
    with torch.no_grad():
        distributions = torch.log_softmax(load(model_dir)(torch.tensor([row.ids])).logits[0] / 0.7, dim=-1)
    expected = [distributions[position - 1, row.ids[position]].item() for position in row.positions]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-5)
    rows = distributions[[position - 1 for position in row.positions]]
    assert entropies.tolist() == pytest.approx((-(rows.exp() * rows).sum(dim=-1)).tolist(), abs=1e-5)


def test_replaced_logprobs_reach_the_row() -> None:
    played = replace(turn((1,), (2,)), behavior_logprobs=(-0.25,))
    (row,) = build_rows(trajectory(played), vocabulary_size=48, max_row_tokens=9).rows
    assert row.behavior_logprobs == (-0.25,)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=5),
    windows=st.lists(st.integers(1, 3), min_size=5, max_size=5),
)
def test_a_split_by_the_template_changes_no_mask_and_no_weight(
    parts: list[tuple[tuple[int, ...], tuple[int, ...]]], windows: list[int]
) -> None:
    whole = [turn(prompt, completion) for prompt, completion in parts]
    split = []
    for index, (prompt, completion) in enumerate(parts):
        start = max(0, index - windows[index])
        earlier = [token for pair in parts[start:index] for ids in pair for token in ids]
        split.append(turn((*earlier, *prompt), completion))
    one = tensors_of_trajectories([trajectory(*whole), trajectory(*whole)])
    many = tensors_of_trajectories([trajectory(*split, mode=RenderMode.WINDOW), trajectory(*whole)])
    assert torch.equal(one.behavior_logprobs_N, many.behavior_logprobs_N)
    assert torch.equal(one.layout.turn_index_N, many.layout.turn_index_N)
    for kind in AGGREGATIONS:
        weights = [token_weights(kind, each.layout, torch.ones(each.num_tokens)) for each in (one, many)]
        assert torch.equal(*weights)


def tensors_of_trajectories(trajectories: list[Trajectory]) -> BatchTensors:
    """One group of these members."""
    members = tuple(
        StoredMember(member_index=index, attempt=0, data=trajectory_to_bytes(played))
        for index, played in enumerate(trajectories)
    )
    group = TakenGroup(slot=0, group_id="t000000.0", kind="", duration_s=1.0, members=members)
    taken = TakenBatch(batch=0, groups=(group,), lost=(), num_closed_slots=0)
    options = BatchOptions(vocabulary_size=48, max_row_tokens=999, reward=RewardOptions(), discount=0.8)
    return tensors_of(build_batch(taken, options))
