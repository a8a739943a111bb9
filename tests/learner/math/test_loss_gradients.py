"""Every loss against finite differences in float64, and finite numbers where a logprob is -100."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from learner.layout import TokenLayout
from learner.losses.aggregation import token_weights
from learner.losses.epo import EpoOptions, EpoStep
from learner.losses.gspo import sequence_anchor, sequence_ratios, sequence_surrogate
from learner.losses.kl import KlOptions
from learner.losses.off_policy import CORRECTIONS, Correction, CorrectionInputs, OffPolicyOptions, correct
from learner.losses.ppo import PpoOptions
from learner.losses.step_loss import LossOptions, step_token_losses
from learner.losses.token_terms import TokenTerms
from tests.learner.math.golden_files import double
from tests.learner.math.layouts import layout_of

LAYOUT = layout_of([[[1, 1], [1]], [[1, 1, 1]]])
LOGPROBS = [-1.0, -0.4, -2.0, -0.9, -1.7, -0.2]
ENTROPIES = [0.2, 1.1, 3.0, 0.7, 1.9, 0.05]
ADVANTAGES = [0.5, -1.0, 2.0, -0.3, 1.5, -2.0]
BEHAVIOR = [-1.3, -0.7, -1.1, -0.95, -1.2, -0.9]
STEP = EpoStep(beta=1.5, reference=1.0)

LOSSES = {
    "ppo": LossOptions(ppo=PpoOptions()),
    "clip_higher": LossOptions(ppo=PpoOptions(clip_high=0.28)),
    "dual_clip": LossOptions(ppo=PpoOptions(dual_clip=3.0)),
    "unclipped": LossOptions(ppo=PpoOptions(clip_low=1.0, clip_high=math.inf)),
    "kl_k2": LossOptions(ppo=PpoOptions(), kl=KlOptions(coefficient=0.5, kind="k2")),
    "kl_k3": LossOptions(ppo=PpoOptions(), kl=KlOptions(coefficient=0.5, kind="k3")),
    "kl_k3_clamped": LossOptions(ppo=PpoOptions(), kl=KlOptions(coefficient=0.5, kind="k3_clamped")),
    "epo": LossOptions(ppo=PpoOptions(), epo=EpoOptions(kappa_low=0.5, alpha=2.0)),
    "epo_base": LossOptions(ppo=PpoOptions(), epo=EpoOptions(smooth_coefficient=0.0)),
    "epo_active_corridor": LossOptions(
        ppo=PpoOptions(), epo=EpoOptions(smooth_coefficient=0.1, kappa_low=0.5, kappa_high=1.2, alpha=2.0)
    ),
}


def terms_of(correction: Correction) -> TokenTerms:
    weights = token_weights("nested", LAYOUT, correction.mask_N, dtype=torch.float64)
    return TokenTerms(
        advantages_N=double(ADVANTAGES),
        anchor_logprobs_N=correction.anchor_logprobs_N,
        correction_weights_N=correction.weights_N,
        policy_weights_N=weights,
        entropy_weights_N=weights,
        reference_logprobs_N=double(BEHAVIOR) - 0.2,
        interpolation=correction.interpolation,
    )


def corrected(mode: str, logprobs: Tensor, *, veto: float | None = None) -> Correction:
    inputs = CorrectionInputs(
        proximal_logprobs_N=logprobs.detach(),
        behavior_logprobs_N=double(BEHAVIOR),
        mask_N=torch.ones(6, dtype=torch.bool),
        layout=LAYOUT,
        lags_N=torch.tensor([0, 1, 2, 3, 4, 1]),
    )
    return correct(OffPolicyOptions(mode=mode, veto=veto), inputs)


def leaves() -> tuple[Tensor, Tensor]:
    return double(LOGPROBS).requires_grad_(), double(ENTROPIES).requires_grad_()


def check(terms: TokenTerms, options: LossOptions) -> None:
    logprobs, entropies = leaves()
    assert torch.autograd.gradcheck(
        lambda lp, h: step_token_losses(lp, h, terms, options, STEP), (logprobs, entropies), eps=1e-7, atol=1e-6
    )


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_has_exact_gradients(name: str) -> None:
    # The anchor lies apart from the policy, so that no token sits on a kink.
    check(terms_of(corrected("behaviour_ratio", double(LOGPROBS))), LOSSES[name])


@pytest.mark.parametrize("mode", sorted(set(CORRECTIONS) - {"log_linear"}))
def test_every_correction_leaves_the_gradients_exact(mode: str) -> None:
    check(terms_of(corrected(mode, double(LOGPROBS) + 0.05, veto=1e-3)), LOSSES["clip_higher"])


def test_the_interpolated_anchor_is_a_constant_of_the_gradient() -> None:
    correction = corrected("log_linear", double(LOGPROBS))
    assert correction.interpolation is not None
    logprobs, entropies = leaves()
    losses = step_token_losses(logprobs, entropies, terms_of(correction), LOSSES["ppo"])
    (actual,) = torch.autograd.grad(losses.sum(), logprobs)
    anchor, weights = correction.interpolation.at(logprobs)
    fixed = replace(correction, anchor_logprobs_N=anchor, weights_N=weights, interpolation=None)
    expected_losses = step_token_losses(logprobs, entropies, terms_of(fixed), LOSSES["ppo"])
    (expected,) = torch.autograd.grad(expected_losses.sum(), logprobs)
    torch.testing.assert_close(actual, expected)
    assert anchor.tolist()[:2] == [LOGPROBS[0], BEHAVIOR[1]]


def test_kl_cov_has_exact_gradients() -> None:
    terms = replace(
        terms_of(corrected("behaviour_ratio", double(LOGPROBS))), anchor_kl_N=double([1.0, 0, 0, 0.5, 0, 1.0])
    )
    check(terms, LOSSES["unclipped"])


def test_references_of_their_own_have_exact_gradients_and_missing_ones_no_penalty() -> None:
    terms = replace(
        terms_of(corrected("behaviour_ratio", double(LOGPROBS))),
        entropy_references_N=double([1.0, 3.0, 0.5, math.nan, 1.2, 1.5]),
    )
    check(terms, LOSSES["epo_active_corridor"])
    logprobs, entropies = leaves()
    losses = step_token_losses(logprobs, entropies, terms, LOSSES["epo_active_corridor"], STEP)
    (gradient,) = torch.autograd.grad(losses.sum(), entropies)
    bonus = -0.001 * terms.entropy_weights_N
    assert gradient[3].item() == pytest.approx(bonus[3].item())
    assert (gradient[:3] - bonus[:3]).abs().min() > 0.0


def sequence_loss(logprobs: Tensor, anchor: Tensor, advantages_J: Tensor, layout: TokenLayout, clip: float) -> Tensor:
    everything = torch.ones_like(logprobs)
    ratios = sequence_ratios(logprobs, anchor, everything, layout)
    return sequence_surrogate(ratios, advantages_J, clip_low=clip, clip_high=clip).mean()


@pytest.mark.parametrize("clip", [3e-4, 0.9])
@pytest.mark.parametrize("advantages", [[1.0, -0.5], [-1.0, 0.5]])
def test_gspo_per_token_has_loss_and_gradient_of_the_sequence_loss(clip: float, advantages: list[float]) -> None:
    logprobs, anchor, advantages_J = double(LOGPROBS).requires_grad_(), double(BEHAVIOR), double(advantages)
    assert torch.autograd.gradcheck(
        lambda lp: sequence_loss(lp, anchor, advantages_J, LAYOUT, clip), (logprobs,), eps=1e-7, atol=1e-6
    )
    whole = sequence_loss(logprobs, anchor, advantages_J, LAYOUT, clip)
    (expected,) = torch.autograd.grad(whole, logprobs)
    everything = torch.ones(6, dtype=torch.float64)
    terms = TokenTerms(
        advantages_N=advantages_J[LAYOUT.trajectory_index_N],
        anchor_logprobs_N=sequence_anchor(logprobs, anchor, everything, LAYOUT),
        correction_weights_N=everything,
        policy_weights_N=token_weights("seq_mean_token_mean", LAYOUT, everything, dtype=torch.float64),
        entropy_weights_N=everything,
    )
    options = LossOptions(ppo=PpoOptions(clip_low=clip, clip_high=clip))
    losses = step_token_losses(logprobs, everything, terms, options)
    (actual,) = torch.autograd.grad(losses.sum(), logprobs)
    torch.testing.assert_close(losses.sum(), whole)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mode", sorted(CORRECTIONS))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("with_veto", [False, True])
def test_logprobs_of_minus_100_stay_finite_everywhere(mode: str, loss: str, *, with_veto: bool) -> None:
    logprobs = torch.tensor([-100.0, -0.1, -100.0, -0.1, -100.0, -0.1], requires_grad=True)
    entropies = torch.tensor(ENTROPIES, requires_grad=True)
    inputs = CorrectionInputs(
        proximal_logprobs_N=logprobs.detach(),
        behavior_logprobs_N=logprobs.detach().flip(0),
        mask_N=torch.ones(6, dtype=torch.bool),
        layout=LAYOUT,
        lags_N=torch.tensor([0, 1, 2, 3, 4, 1]),
    )
    correction = correct(OffPolicyOptions(mode=mode, veto=1e-4 if with_veto else None), inputs)
    anchor = sequence_anchor(inputs.proximal_logprobs_N, correction.anchor_logprobs_N, correction.mask_N, LAYOUT)
    for anchor_N in (correction.anchor_logprobs_N, anchor):
        weights = token_weights("token_mean", LAYOUT, correction.mask_N)
        terms = TokenTerms(
            advantages_N=torch.tensor(ADVANTAGES),
            anchor_logprobs_N=anchor_N,
            correction_weights_N=correction.weights_N,
            policy_weights_N=weights,
            entropy_weights_N=weights,
            reference_logprobs_N=inputs.behavior_logprobs_N,
            anchor_kl_N=torch.ones(6),
            interpolation=correction.interpolation,
        )
        losses = step_token_losses(logprobs, entropies, terms, LOSSES[loss], STEP)
        gradients = torch.autograd.grad(losses.sum(), (logprobs, entropies), allow_unused=True, materialize_grads=True)
        assert losses.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients)
