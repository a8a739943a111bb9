from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from learner.imitation.rows import DemonstrationRow
from learner.imitation.windows import cut_window


def episode(lengths: list[int]) -> DemonstrationRow:
    """Turns of the given lengths; a token's id is its position; all of it is imitated."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    total = sum(lengths)
    return DemonstrationRow(
        ids=tuple(range(total)), response_mask=(True,) * total, turn_starts=tuple(starts), completions=()
    )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 300), st.integers(0, 1000))
def test_a_window_is_a_run_of_whole_turns_within_its_length(lengths: list[int], num_tokens: int, seed: int) -> None:
    row = episode(lengths)
    ids, mask = cut_window(row, num_tokens, random.Random(seed))
    bounds = {*row.turn_starts, len(row.ids)}
    assert len(ids) == len(mask) > 0
    assert ids[0] in bounds
    assert ids[-1] + 1 in bounds
    assert ids == tuple(range(ids[0], ids[-1] + 1))
    assert len(ids) <= max(num_tokens, max(lengths))
    assert any(mask)


def test_every_turn_is_imitated_by_some_window() -> None:
    row, draw = episode([10] * 20), random.Random(0)
    imitated: set[int] = set()
    for _ in range(200):
        ids, mask = cut_window(row, 60, draw)
        imitated |= {index for index, trained in zip(ids, mask, strict=True) if trained}
    assert imitated == set(row.ids)


def test_a_window_inside_the_episode_begins_with_turns_that_are_only_read() -> None:
    row, draw = episode([10] * 20), random.Random(1)
    for _ in range(100):
        ids, mask = cut_window(row, 60, draw)
        assert sum(not trained for trained in mask) == (30 if ids[0] else 0)


def test_a_short_episode_stays_whole() -> None:
    row = episode([10, 10])
    assert cut_window(row, 20, random.Random(0)) == (row.ids, row.response_mask)
