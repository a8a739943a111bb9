"""Estimators with a critic against the golden file, and the value loss against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.advantages.gae import whiten
from learner.advantages.value_based import GaeOptions, Turns, ValuedEpisode, bi_level_gae, token_gae, turn_gae
from learner.losses.value import clipped_value_loss, explained_variance
from tests.learner.math.golden_files import assert_close, double, golden

GAE = golden("advantages_gae")
TOLERANCE = GAE["tolerance_abs"]


def chosen(row: list[float], mask: list[int]) -> list[float]:
    return [value for value, keep in zip(row, mask, strict=True) if keep]


def turns_by_mask(row: list[float], mask: list[int]) -> Turns:
    """A turn is a run of model tokens between observation tokens."""
    turns: list[list[float]] = []
    was_model = False
    for value, keep in zip(row, mask, strict=True):
        if keep and not was_model:
            turns.append([])
        if keep:
            turns[-1].append(value)
        was_model = bool(keep)
    return tuple(map(tuple, turns))


@pytest.mark.parametrize("case", GAE["cases"], ids=lambda case: f"{case['gamma']}-{case['lam']}")
def test_token_gae_skips_observation_tokens_as_the_golden_file_does(case: dict[str, Any]) -> None:
    options = GaeOptions(discount=case["gamma"], smoothing=case["lam"])
    advantages: list[float] = []
    for row, mask in enumerate(GAE["mask"]):
        episode = ValuedEpisode(
            rewards=turns_by_mask(GAE["token_rewards"][row], mask), values=turns_by_mask(GAE["values"][row], mask)
        )
        estimate = token_gae(episode, options)
        assert_close(double(estimate.advantages), chosen(case["mask_skipping"]["adv"][row], mask), TOLERANCE)
        assert_close(double(estimate.targets), chosen(case["mask_skipping"]["ret"][row], mask), TOLERANCE)
        advantages.extend(estimate.advantages)
    whitened = [
        value
        for row, mask in zip(case["mask_skipping"]["whitened"], GAE["mask"], strict=True)
        for value in chosen(row, mask)
    ]
    assert_close(whiten(double(advantages), torch.ones(len(advantages))), whitened, TOLERANCE)


@pytest.mark.parametrize("case", GAE["turn_level"], ids=lambda case: f"{case['gamma']}-{case['lam']}")
def test_turn_gae_values_a_turn_before_its_first_token_and_spreads_one_advantage(case: dict[str, Any]) -> None:
    # Three tokens a turn; only the first one's value and the turn's sum of rewards may matter.
    episode = ValuedEpisode(
        rewards=tuple((0.0, reward - 7.0, 7.0) for reward in case["turn_rewards"]),
        values=tuple((value, 55.0, -55.0) for value in case["turn_values"]),
    )
    estimate = turn_gae(episode, GaeOptions(discount=case["gamma"], smoothing=case["lam"]))
    assert_close(double(estimate.advantages), [value for value in case["adv"] for _ in range(3)], 1e-9)
    firsts = estimate.targets[::3]
    assert_close(double(firsts), [a + v for a, v in zip(case["adv"], case["turn_values"], strict=True)], 1e-9)
    assert estimate.targets[1::3] == estimate.targets[2::3] == (None,) * len(firsts)


def test_bi_level_gae_matches_the_released_example_with_turns_that_are_given() -> None:
    case = GAE["bilevel_repo_selftest"]
    ends = [index + 1 for index, reward in enumerate(case["rewards"][0]) if reward]
    starts = [0, *ends[:-1]]

    def by_turn(row: list[float]) -> Turns:
        return tuple(tuple(row[start:end]) for start, end in zip(starts, ends, strict=True))

    episode = ValuedEpisode(rewards=by_turn(case["rewards"][0]), values=by_turn(case["values"][0]))
    estimate = bi_level_gae(episode, GaeOptions(turn_discount=case["high_level_gamma"]))
    assert_close(double(estimate.advantages), case["adv"][0], TOLERANCE)


def test_a_turn_without_reward_is_a_turn_of_its_own() -> None:
    episode = ValuedEpisode(rewards=((0.0,), (0.0,), (1.0,)), values=((0.0,), (0.0,), (0.0,)))
    assert bi_level_gae(episode, GaeOptions(turn_discount=0.5)).advantages == (0.25, 0.5, 1.0)


@pytest.mark.parametrize("estimator", [token_gae, turn_gae, bi_level_gae])
def test_an_episode_that_goes_on_is_worth_its_bootstrap(estimator: Any) -> None:
    cut = ValuedEpisode(rewards=((0.0, 1.0),), values=((0.0, 0.0),))
    assert estimator(cut, GaeOptions(turn_discount=1.0)).advantages == (1.0, 1.0)
    going_on = ValuedEpisode(rewards=((0.0, 1.0),), values=((0.0, 0.0),), bootstrap=0.5)
    assert estimator(going_on, GaeOptions(turn_discount=1.0)).advantages == (1.5, 1.5)


turns = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4).map(tuple), min_size=1, max_size=5).map(tuple)


@given(rewards=turns)
def test_without_discount_and_values_every_token_gets_what_is_still_to_come(rewards: Turns) -> None:
    zeros = tuple((0.0,) * len(turn) for turn in rewards)
    flat = [reward for turn in rewards for reward in turn]
    advantages = token_gae(ValuedEpisode(rewards=rewards, values=zeros), GaeOptions()).advantages
    assert advantages == pytest.approx([sum(flat[index:]) for index in range(len(flat))], abs=1e-9)


@given(rewards=turns)
def test_perfect_values_leave_no_advantage(rewards: Turns) -> None:
    flat = [reward for turn in rewards for reward in turn]
    worth = iter([sum(flat[index:]) for index in range(len(flat))])
    values = tuple(tuple(next(worth) for _ in turn) for turn in rewards)
    estimate = token_gae(ValuedEpisode(rewards=rewards, values=values), GaeOptions(smoothing=0.7))
    assert estimate.advantages == pytest.approx([0.0] * len(flat), abs=1e-9)


def test_turns_without_tokens_and_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        ValuedEpisode(rewards=((0.0,),), values=((0.0, 0.0),))
    with pytest.raises(ValueError, match="leave it out"):
        ValuedEpisode(rewards=((),), values=((),))


@pytest.mark.parametrize("clip", [None, 0.2, 2.0])
def test_the_value_loss_has_exact_gradients(clip: float | None) -> None:
    values = double([0.1, 0.9, -1.3, 2.0]).requires_grad_()
    old, targets = double([0.0, 0.3, -1.2, 0.5]), double([1.0, 0.2, -3.0, 2.5])
    assert torch.autograd.gradcheck(
        lambda v: clipped_value_loss(v, old, targets, clip=clip), (values,), eps=1e-7, atol=1e-6
    )


def test_a_value_beyond_the_clip_gets_no_gradient_for_going_on() -> None:
    values, old = double([0.5, 0.5]).requires_grad_(), double([0.0, 0.0])
    # The first has overtaken its bound towards the target, the second away from it.
    losses = clipped_value_loss(values, old, double([1.0, -1.0]), clip=0.2)
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert gradient.tolist() == [0.0, 1.5]
    assert losses.tolist() == pytest.approx([0.5 * 0.8**2, 0.5 * 1.5**2])


def test_explained_variance() -> None:
    targets, mask = double([1.0, 2.0, 3.0, 99.0]), torch.tensor([1, 1, 1, 0])
    assert explained_variance(targets, targets, mask) == 1.0
    assert explained_variance(targets + 5.0, targets, mask) == 1.0
    assert explained_variance(double([2.0] * 4), targets, mask) == 0.0
    assert explained_variance(-targets, targets, mask) == pytest.approx(-3.0)
    assert explained_variance(targets, double([1.0] * 4), mask) is None
    assert explained_variance(targets, targets, torch.tensor([1, 0, 0, 0])) is None
