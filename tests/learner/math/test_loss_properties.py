import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.losses.aggregation import token_weights
from learner.losses.entropy_history import EntropyHistory, HistoryOptions
from learner.losses.epo import EpoOptions, EpoStep, corridor_occupancy, corridor_penalty, entropy_losses, epo_step
from learner.losses.kl import KlOptions, k2, k3
from learner.losses.off_policy import CorrectionInputs, OffPolicyOptions, correct
from learner.losses.ppo import PpoOptions, clip_flags, clipped_surrogate
from learner.losses.statistics import (
    effective_sample_size,
    mismatch_by_bucket,
    mismatch_statistics,
    update_statistics,
)
from learner.losses.step_loss import LossOptions, TokenTerms, step_token_losses
from tests.learner.math.golden_files import double
from tests.learner.math.layouts import flatten, layout_of

KINDS = ["token_mean", "seq_mean_token_mean", "turn_mean", "nested"]
MASKS = st.lists(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=4), min_size=1, max_size=4
)
small = settings(max_examples=40, deadline=None)


@small
@given(masks=MASKS, kind=st.sampled_from(KINDS))
def test_weights_of_a_mean_sum_to_one_and_are_zero_off_the_mask(masks: list[list[list[int]]], kind: str) -> None:
    mask, layout = flatten(masks), layout_of(masks)
    weights = token_weights(kind, layout, mask, dtype=torch.float64)
    assert math.isclose(weights.sum().item(), 1.0 if mask.any() else 0.0, abs_tol=1e-12)
    assert not weights[mask == 0].any()


@small
@given(masks=MASKS, kind=st.sampled_from(KINDS), pads=st.integers(1, 3))
def test_masked_tokens_turns_and_trajectories_change_no_weight(
    masks: list[list[list[int]]], kind: str, pads: int
) -> None:
    padded = [[[*tokens, *[0] * pads] for tokens in turns] + [[0]] for turns in masks] + [[[0] * pads]]
    mask, padded_mask = flatten(masks), flatten(padded)
    weights = token_weights(kind, layout_of(masks), mask, dtype=torch.float64)
    padded_weights = token_weights(kind, layout_of(padded), padded_mask, dtype=torch.float64)
    torch.testing.assert_close(padded_weights[padded_mask == 1], weights[mask == 1])


@small
@given(masks=MASKS, kind=st.sampled_from(KINDS), seed=st.integers(0, 99), parts=st.sampled_from([1, 2, 4, 8]))
def test_micro_batches_add_up_to_the_whole_gradient(
    masks: list[list[list[int]]], kind: str, seed: int, parts: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask, layout = flatten(masks), layout_of(masks)
    size = len(mask)
    rows = torch.randn(5, size, generator=generator, dtype=torch.float64)
    weights = token_weights(kind, layout, mask, dtype=torch.float64)
    terms = TokenTerms(
        advantages_N=rows[0],
        anchor_logprobs_N=rows[1],
        correction_weights_N=rows[2].exp(),
        policy_weights_N=weights,
        entropy_weights_N=weights,
    )
    options, step = LossOptions(ppo=PpoOptions(), epo=EpoOptions(kappa_low=0.5)), EpoStep(beta=1.2, reference=1.0)

    def gradient(pieces: list[Tensor]) -> tuple[Tensor, Tensor]:
        logprobs, entropies = rows[3].clone().requires_grad_(), rows[4].abs().requires_grad_()
        for index in pieces:
            piece = step_token_losses(logprobs[index], entropies[index], terms.take(index), options, step)
            piece.sum().backward()
        assert logprobs.grad is not None
        assert entropies.grad is not None
        return logprobs.grad, entropies.grad

    shuffled = torch.randperm(size, generator=generator)
    for split, whole in zip(gradient(list(shuffled.chunk(parts))), gradient([torch.arange(size)]), strict=True):
        torch.testing.assert_close(split, whole, atol=1e-15, rtol=1e-12)


def test_every_loss_term_has_exact_gradients() -> None:
    logprobs = double([-1.0, -0.4, -2.0, -0.9]).requires_grad_()
    entropies = double([0.2, 1.1, 3.0, 0.7]).requires_grad_()
    fixed = double([0.5, -1.0, 2.0, -0.3])
    terms = TokenTerms(
        advantages_N=fixed,
        anchor_logprobs_N=double([-1.1, -0.45, -2.05, -0.8]),
        correction_weights_N=fixed.abs(),
        policy_weights_N=fixed.abs(),
        entropy_weights_N=fixed.abs(),
        reference_logprobs_N=fixed - 1,
    )
    for kind in ("k2", "k3"):
        options = LossOptions(
            ppo=PpoOptions(dual_clip=3.0),
            epo=EpoOptions(kappa_low=0.5, alpha=2.0),
            kl=KlOptions(coefficient=0.5, kind=kind),
        )
        assert torch.autograd.gradcheck(
            lambda lp, entropy, options=options: step_token_losses(
                lp, entropy, terms, options, EpoStep(beta=1.5, reference=1.0)
            ),
            (logprobs, entropies),
        )


@pytest.mark.parametrize("mode", ["decoupled", "behaviour_ratio", "none"])
def test_logprobs_of_minus_100_stay_finite_and_the_clip_counts_them(mode: str) -> None:
    logprobs = torch.tensor([-100.0, -0.1, -100.0, -0.1], requires_grad=True)
    other = torch.tensor([-0.1, -100.0, -0.1, -100.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    layout = layout_of([[[1] * 4]])
    inputs = CorrectionInputs(
        proximal_logprobs_N=other, behavior_logprobs_N=logprobs.detach(), mask_N=torch.ones(4), layout=layout
    )
    correction = correct(OffPolicyOptions(mode=mode), inputs)
    weights = token_weights("token_mean", layout, correction.mask_N)
    terms = TokenTerms(
        advantages_N=advantages,
        anchor_logprobs_N=correction.anchor_logprobs_N,
        correction_weights_N=correction.weights_N,
        policy_weights_N=weights,
        entropy_weights_N=weights,
        reference_logprobs_N=other,
    )
    options = LossOptions(ppo=PpoOptions(), kl=KlOptions(kind="k3"))
    loss = step_token_losses(logprobs, torch.zeros(4), terms, options).sum()
    loss.backward()
    assert loss.isfinite()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    is_clipped, _ = clip_flags(logprobs.detach(), other, advantages, PpoOptions())
    assert is_clipped.tolist() == [False, True, True, False]
    statistics = mismatch_statistics(other, logprobs.detach(), torch.ones(4), OffPolicyOptions())
    statistics |= update_statistics(logprobs, other, advantages, torch.ones(4), PpoOptions())
    assert all(math.isfinite(value) for value in statistics.values())


def test_equal_weights_reduce_decoupled_ppo_to_ppo() -> None:
    logprobs, proximal, advantages = double([-1.0, -0.5]), double([-1.2, -0.4]), double([1.0, -1.0])
    inputs = CorrectionInputs(
        proximal_logprobs_N=proximal,
        behavior_logprobs_N=proximal,
        mask_N=torch.ones(2),
        layout=layout_of([[[1, 1]]]),
    )
    plain = clipped_surrogate(logprobs, proximal, advantages, PpoOptions())
    for mode in ("decoupled", "behaviour_ratio", "none"):
        correction = correct(OffPolicyOptions(mode=mode), inputs)
        surrogate = clipped_surrogate(logprobs, correction.anchor_logprobs_N, advantages, PpoOptions())
        torch.testing.assert_close(correction.weights_N * surrogate, plain)


def test_a_long_episode_with_tiny_mismatch_keeps_its_weight_near_one() -> None:
    behavior = torch.full((10_000,), -1.0)
    inputs = CorrectionInputs(
        proximal_logprobs_N=behavior + 1e-3,
        behavior_logprobs_N=behavior,
        mask_N=torch.ones(10_000),
        layout=layout_of([[[1] * 10_000]]),
    )
    weights = correct(OffPolicyOptions(), inputs).weights_N
    torch.testing.assert_close(weights, torch.full_like(weights, 1.001), atol=1e-5, rtol=0.0)


@small
@given(values=st.lists(st.floats(-5, 0), min_size=1, max_size=6), shift=st.floats(-3, 3))
def test_kl_losses_are_never_negative_and_zero_at_equality(values: list[float], shift: float) -> None:
    logprobs = double(values)
    for estimator in (k2, k3):
        assert (estimator(logprobs, logprobs + shift) >= -1e-12).all()
        assert not estimator(logprobs, logprobs).any()


def test_k1_is_refused_as_a_loss() -> None:
    with pytest.raises(ValueError, match="use k2 or k3"):
        KlOptions(kind="k1")


def test_the_penalty_has_gradient_outside_the_corridor_only_and_the_indicator_none() -> None:
    step, entropies = EpoStep(beta=2.0, reference=1.0), double([0.2, 1.0, 2.5]).requires_grad_()
    hinge = EpoOptions(kappa_low=0.5, kappa_high=1.5)
    (gradient,) = torch.autograd.grad(corridor_penalty(entropies, step, hinge).sum(), entropies)
    assert gradient.tolist() == [-1.0, 0.0, 1.0]
    indicator = corridor_penalty(entropies, step, EpoOptions(kappa_low=0.5, kappa_high=1.5, form="indicator"))
    assert indicator.tolist() == [1.0, 0.0, 1.0]
    assert not indicator.requires_grad


def test_the_first_step_has_no_penalty_and_all_tokens_inside() -> None:
    step = epo_step(EpoOptions(), EntropyHistory(), 0, 100)
    entropies = double([0.0, 5.0])
    assert step.beta == 2.0
    torch.testing.assert_close(entropy_losses(entropies, step, EpoOptions()), -0.001 * entropies)
    assert corridor_occupancy(entropies, torch.ones(2), step, EpoOptions()).inside == 1.0


@small
@given(
    values=st.lists(st.floats(0, 5), min_size=1, max_size=12),
    kind=st.sampled_from(["cumulative", "sliding", "ema"]),
)
def test_a_history_survives_its_state_and_stays_within_its_entries(values: list[float], kind: str) -> None:
    history = EntropyHistory(options=HistoryOptions(kind=kind, window=3))
    for value in values:
        history = history.appended(value)
    assert EntropyHistory.from_state(history.to_state(), history.options) == history
    assert history.reference is not None
    assert min(values) - 1e-12 <= history.reference <= max(values) + 1e-12


def test_a_history_refuses_an_entropy_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="finite"):
        EntropyHistory().appended(math.nan)


def test_effective_sample_size_spans_one_to_one_over_n() -> None:
    assert math.isclose(effective_sample_size(torch.ones(8)), 1.0)
    assert math.isclose(effective_sample_size(torch.tensor([math.exp(20.0), 0.0, 0.0, 0.0])), 0.25)


def test_statistics_ignore_masked_tokens() -> None:
    logprobs, anchor = torch.tensor([-1.0, -0.5, -9.0]), torch.tensor([-1.0, -1.0, -1.0])
    advantages, mask = torch.tensor([1.0, 3.0, 100.0]), torch.tensor([1, 1, 0])
    statistics = update_statistics(logprobs, anchor, advantages, mask, PpoOptions())
    assert statistics["clip_fraction"] == 0.5
    assert statistics["advantage_mean"] == 2.0
    assert math.isclose(statistics["ratio_max"], math.exp(0.5), rel_tol=1e-6)
    weights = mismatch_statistics(logprobs, anchor, mask, OffPolicyOptions(cap=1.5))
    assert weights["share_at_cap"] == 0.5


def test_mismatch_is_told_apart_by_bucket_and_ignores_masked_tokens() -> None:
    proximal, behavior = torch.tensor([-1.0, -1.0, -1.0, -9.0]), torch.tensor([-1.0, -1.5, -1.0, -1.0])
    found = mismatch_by_bucket(proximal, behavior, torch.tensor([1, 1, 1, 0]), torch.tensor([0, 2, 2, 3]))
    assert sorted(found) == [0, 2]
    assert found[0] == {"mean_abs_log_weight": 0.0, "effective_sample_size": 1.0}
    assert found[2]["mean_abs_log_weight"] == 0.25
    assert math.isclose(
        found[2]["effective_sample_size"], effective_sample_size(torch.tensor([math.exp(0.5), 1.0])), rel_tol=1e-6
    )
