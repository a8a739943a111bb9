"""Masks, denominators and anchors of the corrections that the golden files do not hold."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.losses.aggregation import AGGREGATIONS, token_weights
from learner.losses.log_linear_proximal import current_shares
from learner.losses.off_policy import CORRECTIONS, CorrectionInputs, OffPolicyOptions, correct
from tests.learner.math.golden_files import double
from tests.learner.math.layouts import layout_of

small = settings(max_examples=40, deadline=None)
REJECTING = ("token_rejection", "sequence_mis", "geometric_rejection")
TRAJECTORIES = st.lists(
    st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=4
)


def inputs_of(log_weights: list[list[list[float]]]) -> CorrectionInputs:
    layout = layout_of(log_weights)
    behavior = torch.full((layout.num_tokens,), -4.0, dtype=torch.float64)
    logs = double([value for turns in log_weights for tokens in turns for value in tokens])
    return CorrectionInputs(
        proximal_logprobs_N=behavior + logs,
        behavior_logprobs_N=behavior,
        mask_N=torch.ones(layout.num_tokens, dtype=torch.bool),
        layout=layout,
        lags_N=torch.zeros(layout.num_tokens, dtype=torch.int64),
    )


@small
@given(log_weights=TRAJECTORIES, mode=st.sampled_from(sorted(CORRECTIONS)))
def test_a_correction_only_ever_takes_tokens_out_and_bounds_its_weights(
    log_weights: list[list[list[float]]], mode: str
) -> None:
    inputs = inputs_of(log_weights)
    options = OffPolicyOptions(mode=mode, cap=1.5, upper=2.0, veto=0.1)
    correction = correct(options, inputs)
    assert not (correction.mask_N.bool() & ~inputs.mask_N).any()
    assert (correction.weights_N >= 0).all()
    if mode in ("decoupled", "sequence_tis", "geometric_rejection"):
        assert correction.weights_N.max() <= options.cap + 1e-12
    if mode == "icepop":
        assert correction.weights_N.max() <= options.upper + 1e-12


@small
@given(log_weights=TRAJECTORIES, mode=st.sampled_from(REJECTING), kind=st.sampled_from(sorted(AGGREGATIONS)))
def test_what_is_rejected_leaves_every_denominator(log_weights: list[list[list[float]]], mode: str, kind: str) -> None:
    inputs = inputs_of(log_weights)
    mask = correct(OffPolicyOptions(mode=mode, upper=1.5), inputs).mask_N
    weights = token_weights(kind, inputs.layout, mask, dtype=torch.float64)
    assert math.isclose(weights.sum().item(), 1.0 if mask.any() else 0.0, abs_tol=1e-9)
    assert not weights[~mask.bool()].any()


def test_icepop_keeps_its_zeroed_tokens_in_the_denominator() -> None:
    inputs = inputs_of([[[0.0, 3.0]]])
    correction = correct(OffPolicyOptions(mode="icepop"), inputs)
    assert correction.weights_N.tolist() == [1.0, 0.0]
    assert token_weights("token_mean", inputs.layout, correction.mask_N).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("mode", ["decoupled", "icepop", "sequence_mis"])
def test_one_catastrophic_token_vetoes_its_trajectory_and_no_other(mode: str) -> None:
    inputs = inputs_of([[[0.0, 0.1], [-10.0]], [[0.1], [-1.0]]])
    assert correct(OffPolicyOptions(mode=mode, lower=0.0, veto=1e-4), inputs).mask_N.tolist() == [
        *(False, False, False),
        *(True, True),
    ]


def test_a_token_that_became_likelier_is_no_catastrophe() -> None:
    inputs = inputs_of([[[12.0, 0.0]]])
    assert correct(OffPolicyOptions(veto=1e-4), inputs).mask_N.all()


@pytest.mark.parametrize("veto", [0.0, 1.0, 1e-9])
def test_a_veto_that_could_never_or_always_fire_is_refused(veto: float) -> None:
    with pytest.raises(ValueError, match="veto"):
        OffPolicyOptions(veto=veto)


def test_shares_of_the_current_policy_follow_the_lag() -> None:
    lags = torch.tensor([0, 1, 2, 4])
    assert current_shares(lags.double()).tolist() == [1.0, 0.0, 0.5, 0.75]


def test_the_interpolated_weight_is_capped() -> None:
    inputs = inputs_of([[[0.0]]])
    correction = correct(OffPolicyOptions(mode="log_linear", cap=1.25), inputs)
    assert correction.interpolation is not None
    anchor, weights = correction.interpolation.at(double([-1.0]))
    assert (anchor.item(), weights.item()) == (-1.0, 1.25)
