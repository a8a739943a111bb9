"""How old the data of a batch is said to be."""

from __future__ import annotations

import pytest

from learner.batch import tensors_of
from learner.measures import group_facts, lag_measures, token_lags
from tests.learner.batches import batch_of

VERSION = 0


@pytest.mark.parametrize(("sampled_at", "lag"), [(1, 2), (3, 0), (7, 0)])
def test_every_measure_counts_weights_that_a_restart_lost_as_current(sampled_at: int, lag: int) -> None:
    batch, steps, current_step = batch_of(2, 2), {VERSION: sampled_at}, 3
    measures = lag_measures(batch, steps, current_step)
    assert {measures[f"learner/lag/{name}"] for name in ("head", "tail", "token_mean")} == {lag}
    assert {facts.lag for facts in group_facts(batch, steps, current_step)} == {lag}
    assert set(token_lags(tensors_of(batch), steps, current_step).tolist()) == {lag}
