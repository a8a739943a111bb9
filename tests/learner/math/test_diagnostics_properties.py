import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.diagnostics.mi import CrossScores, estimate, retrieval
from learner.diagnostics.regimes import Regime, RegimeTracker
from learner.diagnostics.staleness import StepSpan, lag
from learner.diagnostics.turn_entropy import early_late_thirds, entropy_by_turn
from tests.learner.math.golden_files import double
from tests.learner.math.layouts import flatten, layout_of

small = settings(max_examples=40, deadline=None)
MATRICES = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(st.floats(-50, -1), min_size=width, max_size=width), min_size=1, max_size=6)
)


def scores_of(matrix: list[list[float]]) -> CrossScores:
    return CrossScores(
        logprob_sums_SP=double(matrix),
        num_tokens_S=torch.tensor([3 + index for index in range(len(matrix))]),
        column_S=torch.tensor([index % len(matrix[0]) for index in range(len(matrix))]),
    )


@small
@given(matrix=MATRICES)
def test_mi_of_sums_never_exceeds_log_p_and_is_the_difference_of_entropies(matrix: list[list[float]]) -> None:
    scores = scores_of(matrix)
    assert estimate(scores).mi <= math.log(scores.num_prompts) + 1e-9
    for variant in ("seq", "per_token_paper", "per_token_repo"):
        result = estimate(scores, variant)
        assert math.isclose(result.h_z - result.h_z_given_x, result.mi, abs_tol=1e-9)


@small
@given(column=st.lists(st.floats(-50, -1), min_size=4, max_size=8), width=st.integers(1, 4))
def test_equal_columns_have_no_information_and_retrieve_at_chance(column: list[float], width: int) -> None:
    column = column[: len(column) // width * width]
    scores = scores_of([[value] * width for value in column])
    assert math.isclose(estimate(scores).mi, 0.0, abs_tol=1e-9)
    assert math.isclose(retrieval(scores).above_chance, 0.0, abs_tol=1e-9)


def feed(tracker: RegimeTracker, accuracy: float, entropy: float, times: int) -> list[Regime | None]:
    return [tracker.observe(retrieval_accuracy=accuracy, chance=0.125, h_z_given_x=entropy).alarm for _ in range(times)]


def test_an_alarm_needs_three_measurements_in_a_row_and_survives_the_checkpoint() -> None:
    tracker = RegimeTracker()
    assert feed(tracker, 0.9, 1.0, 10) == [None] * 10
    assert feed(tracker, 0.15, 1.0, 2) == [None, None]
    assert feed(tracker, 0.9, 1.0, 1) == [None]
    assert feed(tracker, 0.15, 1.0, 2) == [None, None]
    tracker = RegimeTracker.from_state(json.loads(json.dumps(tracker.to_state())))
    assert feed(tracker, 0.15, 1.0, 2) == [Regime.TEMPLATE_COLLAPSE] * 2
    assert feed(tracker, 0.15, 0.1, 3) == [None, None, Regime.LOW_ENTROPY_COLLAPSE]


def test_the_first_ten_measurements_are_provisional_and_raise_no_alarm() -> None:
    tracker = RegimeTracker()
    readings = [tracker.observe(retrieval_accuracy=0.1, chance=0.125, h_z_given_x=1.0) for _ in range(12)]
    assert [reading.is_provisional for reading in readings] == [True] * 9 + [False] * 3
    assert readings[11].alarm is Regime.TEMPLATE_COLLAPSE


def test_a_policy_that_hardly_reasons_is_undetermined() -> None:
    reading = RegimeTracker().observe(retrieval_accuracy=0.1, chance=0.125, h_z_given_x=0.001)
    assert reading.regime is Regime.UNDETERMINED


def test_fresh_data_has_no_lag_and_future_data_is_refused() -> None:
    assert lag([StepSpan(training_step=4, num_tokens=9)], 4).token_weighted == 0
    with pytest.raises(ValueError, match="cannot be trained"):
        lag([StepSpan(training_step=5, num_tokens=1)], 4)


def test_entropy_by_turn_averages_only_tokens_that_exist() -> None:
    entropies = [[[1.0, 2.0], [3.0], [9.0]], [[4.0], [5.0, 100.0]]]
    mask = flatten([[[1, 1], [1], [0]], [[1], [1, 0]]])
    values, layout = flatten(entropies), layout_of(entropies)
    by_turn = entropy_by_turn(values, mask, layout)
    assert by_turn == (pytest.approx(7 / 3), pytest.approx(4.0), None)


def test_early_and_late_are_thirds_of_each_trajectory() -> None:
    entropies = [[[1.0]] * 2 + [[2.0]] * 3 + [[3.0]] * 2, [[10.0], [20.0]]]
    values, layout = flatten(entropies), layout_of(entropies)
    parts = early_late_thirds(values, torch.ones_like(values), layout)
    assert parts.early == pytest.approx((1.0 + 1.0 + 10.0) / 3)
    assert parts.late == pytest.approx((3.0 + 3.0 + 20.0) / 3)
