import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.advantages import GROUP_ADVANTAGES
from learner.advantages.shaping import RewardOptions, shaped_return
from learner.advantages.turn_level import discounted_gains, turn_terms
from learner.filters.keep_all import KeepAll
from learner.filters.scores import GroupReturns, return_variance
from learner.filters.selection import Verdict
from learner.filters.variance_mass import VarianceMass
from tests.learner.math.golden_files import double

small = settings(max_examples=40, deadline=None)
GROUPS = st.lists(st.lists(st.integers(-4, 4), min_size=2, max_size=5), min_size=1, max_size=6)
NAMES = sorted(GROUP_ADVANTAGES)


def flat(groups: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    index = [number for number, group in enumerate(groups) for _ in group]
    return double([value for group in groups for value in group]), torch.tensor(index)


@small
@given(groups=GROUPS)
def test_centred_advantages_of_a_group_sum_to_zero(groups: list[list[int]]) -> None:
    returns, index = flat(groups)
    for name in ("grpo", "dr_grpo", "rloo"):
        sums = torch.zeros(len(groups), dtype=torch.float64).index_add_(
            0, index, GROUP_ADVANTAGES[name](returns, index)
        )
        torch.testing.assert_close(sums, torch.zeros_like(sums), atol=1e-6, rtol=0.0)


@small
@given(groups=GROUPS, seed=st.integers(0, 99), name=st.sampled_from(NAMES))
def test_permuting_trajectories_permutes_advantages(groups: list[list[int]], seed: int, name: str) -> None:
    returns, index = flat(groups)
    order = torch.randperm(len(returns), generator=torch.Generator().manual_seed(seed))
    estimator = GROUP_ADVANTAGES[name]
    torch.testing.assert_close(estimator(returns[order], index[order]), estimator(returns, index)[order])


@small
@given(groups=GROUPS, scale=st.sampled_from([0.5, 10.0]), shift=st.sampled_from([-3.0, 7.0]))
def test_grpo_ignores_scale_and_shift_of_the_return(groups: list[list[int]], scale: float, shift: float) -> None:
    returns, index = flat(groups)
    grpo = GROUP_ADVANTAGES["grpo"]
    torch.testing.assert_close(grpo(returns * scale + shift, index), grpo(returns, index), atol=1e-4, rtol=1e-4)


@small
@given(progress=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_undiscounted_gains_are_what_is_left_to_gain(progress: list[float]) -> None:
    gains = discounted_gains(progress, discount=1.0)
    assert len(gains) == len(progress) - 1
    for gain, before in zip(gains, progress, strict=False):
        assert math.isclose(gain, progress[-1] - before, abs_tol=1e-9)


def test_turns_without_progress_have_no_term_and_leave_the_others_alone() -> None:
    gains, group = double([0.1, 0.4, 99.0, 0.2]), torch.tensor([0, 0, 0, 0])
    terms = turn_terms(gains, group, torch.tensor([True, True, False, True]))
    known = turn_terms(gains[[0, 1, 3]], group[:3], torch.ones(3, dtype=torch.bool))
    assert terms[2] == 0
    torch.testing.assert_close(terms[[0, 1, 3]], known)


def test_no_progress_anywhere_gives_no_turn_term() -> None:
    terms = turn_terms(double([1.0, 2.0]), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.bool))
    assert terms.tolist() == [0.0, 0.0]


def test_the_shaped_return_takes_both_penalties_off() -> None:
    options = RewardOptions(invalid_action_penalty=0.1, format_penalty=0.5)
    shaped = shaped_return(1.0, num_invalid_turns=2, num_malformed_turns=1, options=options)
    assert math.isclose(shaped, 0.3)


SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.5, 40.0]), max_size=9)


@small
@given(scores=SCORES, mass=st.sampled_from([0.3, 0.5, 0.9, 1.0]))
def test_a_selection_is_the_shortest_best_prefix_and_explains_every_group(scores: list[float], mass: float) -> None:
    selection = VarianceMass(mass=mass).select(scores)
    kept = [scores[index] for index in selection.kept]
    left = [score for index, score in enumerate(scores) if index not in selection.kept]
    assert len(selection.verdicts) == len(scores)
    assert [index for index, verdict in enumerate(selection.verdicts) if verdict is Verdict.KEPT] == sorted(
        selection.kept
    )
    assert all(
        (verdict is Verdict.ZERO_VARIANCE) == (score == 0)
        for verdict, score in zip(selection.verdicts, scores, strict=True)
    )
    if kept and mass < 1:
        threshold = mass * sum(scores) - 0.01
        assert sum(kept) >= threshold - 1e-9
        assert sum(kept[:-1]) < threshold
        assert min(kept) >= max(left, default=0.0)
    assert 0.0 <= selection.kept_mass <= 1.0 + 1e-12


@small
@given(scores=SCORES, seed=st.integers(0, 99))
def test_permuting_groups_permutes_the_selection(scores: list[float], seed: int) -> None:
    order = random.Random(seed).sample(range(len(scores)), len(scores))
    kept = VarianceMass().select(scores).kept
    permuted = VarianceMass().select([scores[index] for index in order]).kept
    assert sorted(scores[index] for index in kept) == sorted(scores[order[index]] for index in permuted)


@small
@given(groups=GROUPS, scale=st.sampled_from([0.5, 2.0, 8.0]))
def test_the_filter_follows_the_unit_of_the_reward(groups: list[list[int]], scale: float) -> None:
    variances = [return_variance(GroupReturns(returns=tuple(map(float, group)))) for group in groups]
    scaled = [return_variance(GroupReturns(returns=tuple(scale * value for value in group))) for group in groups]
    assert VarianceMass(success_reward=scale).select(scaled).kept == VarianceMass().select(variances).kept


def test_equal_returns_have_exactly_no_variance() -> None:
    assert return_variance(GroupReturns(returns=(0.1, 0.1, 0.1))) == 0.0


def test_a_batch_of_weak_groups_keeps_none_and_says_why() -> None:
    selection = VarianceMass().select([0.004, 0.0, 0.005])
    assert selection.is_empty
    assert selection.verdicts == (Verdict.WEAK_BATCH, Verdict.ZERO_VARIANCE, Verdict.WEAK_BATCH)


def test_an_empty_batch_gives_an_empty_selection() -> None:
    assert VarianceMass().select([]).is_empty


def test_no_filter_keeps_groups_without_variance() -> None:
    selection = KeepAll().select([0.0, 2.0])
    assert selection.kept == (0, 1)
    assert selection.kept_ratio == 1.0


def test_a_group_of_one_is_refused_by_the_score() -> None:
    with pytest.raises(ValueError, match="group_size"):
        GroupReturns(returns=(1.0,))
