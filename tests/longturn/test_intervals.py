"""Intervals agree with published and hand-made numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.intervals import paired_change, wilson


@pytest.mark.parametrize(
    ("num_successes", "num_episodes", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (15, 148, 0.0624, 0.1605)],
)
def test_wilson_gives_the_intervals_of_newcombe_1998(
    num_successes: int, num_episodes: int, low: float, high: float
) -> None:
    assert wilson(num_successes, num_episodes) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("num_successes", "num_episodes", "low", "high"),
    [(10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (64, 128, 0.4146, 0.5854), (7.5, 10, 0.4422, 0.9191)],
)
def test_wilson_gives_the_intervals_of_the_formula_for_whole_and_mean_successes(
    num_successes: float, num_episodes: int, low: float, high: float
) -> None:
    assert wilson(num_successes, num_episodes) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 10_000))
def test_an_end_that_the_formula_reaches_is_reached(num_episodes: int) -> None:
    assert wilson(0, num_episodes)[0] == 0.0
    assert wilson(num_episodes, num_episodes)[1] == 1.0


def test_no_episodes_say_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200))
def test_a_paired_change_is_the_difference_and_flips_with_the_order(plays: list[tuple[bool, bool]]) -> None:
    before, after = [play[0] for play in plays], [play[1] for play in plays]
    change, (low, high) = paired_change(before, after)
    assert change == pytest.approx(sum(after) / len(after) - sum(before) / len(before))
    flipped, (flipped_low, flipped_high) = paired_change(after, before)
    assert (flipped, flipped_low, flipped_high) == pytest.approx((-change, -high, -low))


def test_no_change_has_an_interval_around_zero() -> None:
    change, (low, high) = paired_change([True] * 50 + [False] * 50, [True] * 50 + [False] * 50)
    assert change == 0.0
    assert low < 0.0 < high


def test_plays_of_different_panels_are_refused() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_change([True], [True, False])
