"""Draws follow the distribution and depend on nothing but key and position."""

import math

import numpy as np
import pytest
import torch

from local_engine.sampling import draw, invert_cumulative, scaled_logprobs, stream_key, uniforms


def test_frequencies_follow_the_probabilities_and_impossible_tokens_never_come() -> None:
    num = 200_000
    probabilities = torch.tensor([0.0, 0.1, 0.0, 0.25, 0.65, 0.0])
    draws = draw(probabilities.log().repeat(num, 1), [1.0] * num, uniforms([stream_key(7, 0)] * num, range(num)))
    counts = np.bincount(draws.token_ids, minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    for token, probability in enumerate(probabilities.tolist()):
        assert abs(counts[token] / num - probability) < 5 * math.sqrt(0.25 / num)


def test_uniforms_lie_strictly_inside_and_look_uniform() -> None:
    values = uniforms([stream_key(seed, 0) for seed in range(50_000)], [3] * 50_000)
    assert 0.0 < values.min() < values.max() < 1.0
    counts, _ = np.histogram(values, bins=20, range=(0.0, 1.0))
    assert abs(counts - 2500).max() < 5 * math.sqrt(2500)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_the_extreme_uniforms_choose_the_first_and_last_possible_token() -> None:
    logprobs = torch.tensor([[0.0, 0.5, 0.5, 0.0]]).log()
    assert invert_cumulative(logprobs, np.asarray([2.0**-49])).item() == 1
    assert invert_cumulative(logprobs, np.asarray([1.0 - 2.0**-49])).item() == 2


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(8, 50)
    temperatures = [0.5, 1.0, 0.0, 2.0, 1.0, 0.7, 1.0, 1.3]
    numbers = uniforms([stream_key(seed, 0) for seed in range(8)], range(8))
    together = draw(scaled_logprobs(logits, temperatures), temperatures, numbers)
    for row in range(8):
        one = slice(row, row + 1)
        alone = draw(scaled_logprobs(logits[one], temperatures[one]), temperatures[one], numbers[one])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[row], abs=1e-6)


def test_samples_of_one_seed_differ() -> None:
    assert len({stream_key(5, index) for index in range(1000)} | {stream_key(index, 0) for index in range(1000)}) > 1990
