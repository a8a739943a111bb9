from typing import Any

import pytest
import torch

from learner.diagnostics.mi import CrossScores, estimate, matched_and_marginal, retrieval, z_score
from learner.diagnostics.regimes import classify, normalised_accuracy
from learner.diagnostics.staleness import StepSpan, lag
from learner.ledger.admission import slots_assignable_below
from tests.learner.math.golden_files import assert_close, double, golden

MI = golden("mi")
STALENESS = golden("staleness")
VARIANTS = ("seq", "per_token_paper", "per_token_repo")


def scores_of(case: dict[str, Any]) -> CrossScores:
    return CrossScores(
        logprob_sums_SP=double(case["cross_logprob_sum"]),
        num_tokens_S=torch.tensor(case["lengths"]),
        column_S=torch.tensor(case["true_column"]),
        prompt_keys=tuple(case["signature"]) if "signature" in case else None,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_mi_estimates_match_the_golden_file(variant: str) -> None:
    for case in MI["cases"]:
        expected, scores = case["out"][variant], scores_of(case)
        matched, marginal = matched_and_marginal(scores, variant)
        assert_close(matched, expected["matched"], MI["tolerance_abs"])
        assert_close(marginal, expected["marginal"], MI["tolerance_abs"])
        actual = estimate(scores, variant)
        for value, key in (
            (actual.mi, "mi"),
            (actual.h_z_given_x, "H_Z_given_X"),
            (actual.h_z, "H_Z"),
            (actual.marginal_std, "marginal_std"),
            (actual.z_score, "z"),
        ):
            assert_close(value, expected[key], MI["tolerance_abs"])
        assert_close(z_score(actual.mi, expected["marginal_std_ema"]), expected["z_ema"], MI["tolerance_abs"])


@pytest.mark.parametrize("case", MI["cases"], ids=lambda case: case["name"])
def test_retrieval_matches_the_golden_file(case: dict[str, Any]) -> None:
    expected, actual = case["out"]["retrieval_sum_scores"], retrieval(scores_of(case))
    assert_close(actual.accuracy, expected["accuracy"], MI["tolerance_abs"])
    assert_close(actual.chance, expected["chance"], MI["tolerance_abs"])
    assert_close(actual.above_chance, expected["above_chance"], MI["tolerance_abs"])
    for k in (2, 4, 8):
        assert_close(actual.recall_at[k], expected[f"recall@{k}"], MI["tolerance_abs"])
        assert_close(actual.chance_at[k], expected[f"chance@{k}_repo"], MI["tolerance_abs"])


def test_mi_of_every_message_of_a_known_channel_weighs_to_its_true_value() -> None:
    channel = MI["exact_channel"]
    p_z_given_x, p_x = double(channel["p_z_given_x"]), channel["p_x"]
    num_x, num_z = p_z_given_x.shape
    scores = CrossScores(
        logprob_sums_SP=p_z_given_x.log().T.repeat(num_x, 1),
        num_tokens_S=torch.ones(num_x * num_z, dtype=torch.int64),
        column_S=torch.arange(num_x).repeat_interleave(num_z),
    )
    matched, marginal = matched_and_marginal(scores, "seq")
    weights = double([p_x[x] * p_z_given_x[x, z].item() for x in range(num_x) for z in range(num_z)])
    assert_close((weights * (matched - marginal)).sum(), channel["MI"], 1e-9)
    assert_close(-(weights * marginal).sum(), channel["H_Z"], 1e-9)
    assert_close(-(weights * matched).sum(), channel["H_Z_given_X"], 1e-9)


@pytest.mark.parametrize("case", golden("regimes")["cases"])
def test_regimes_match_the_golden_file(case: dict[str, Any]) -> None:
    accuracy = normalised_accuracy(case["retrieval_accuracy"], case["chance"])
    assert_close(accuracy, case["normalised_accuracy"], 1e-9)
    regime = classify(
        accuracy,
        case["H_Z_given_X_per_token"],
        accuracy_reference=case["a_ref"],
        entropy_reference=case["H_ref"],
    )
    assert regime == case["regime"]


def test_lag_of_a_version_spanning_trajectory_matches_the_golden_file() -> None:
    expected = STALENESS["version_spanning"]
    spans = [StepSpan(training_step=part["version"], num_tokens=part["tokens"]) for part in expected["segments"]]
    actual = lag(spans, expected["trainer_version"])
    assert (actual.head, actual.tail) == (expected["head_lag"], expected["tail_lag"])
    assert_close(actual.token_weighted, expected["token_weighted_lag"], 1e-12)
    assert (actual.head <= 4) is expected["accept_if_head_lag_le_4"]
    assert (actual.head <= 3) is expected["accept_if_head_lag_le_3"]


@pytest.mark.parametrize("case", STALENESS["admission"]["cases"])
def test_admission_bound_matches_the_golden_file(case: dict[str, Any]) -> None:
    bound = slots_assignable_below(
        groups_per_step=case["batch"], max_policy_lag=case["eta"], batches_consumed=case["trainer_version"]
    )
    assert bound == case["max_submitted"]
