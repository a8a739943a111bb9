from functools import partial
from typing import Any

import pytest
from torch import Tensor

from learner.diagnostics.gradient_decomposition import (
    Decomposition,
    decompose,
    quantile_buckets,
)
from tests.learner.math.golden_files import assert_close, double, golden

FILE = golden("gradient_decomposition")
TOLERANCE = FILE["tolerance_abs"]
STDS = [group["reward_std"] for group in FILE["per_group"]]


def components(logits: Tensor, index: int) -> dict[str, Tensor]:
    logp = logits.log_softmax(0)
    rewards = double(FILE["rewards"][index])
    reference = double(FILE["ref_logits"][index]).log_softmax(0)
    return {
        "task": -((rewards - rewards.mean()) * logp[FILE["actions"][index]]).mean(),
        "entropy": FILE["lambda_entropy"] * (logp.exp() * logp).sum(),
        "kl": FILE["lambda_kl"] * (logp.exp() * (logp - reference)).sum(),
    }


def decomposed(index: int) -> Decomposition:
    logits = double(FILE["logits"][index]).requires_grad_()

    def backward(name: str) -> None:
        components(logits, index)[name].backward()

    found = decompose({name: partial(backward, name) for name in ("task", "entropy", "kl")}, [logits])
    assert logits.grad is None
    return found


@pytest.mark.parametrize("expected", FILE["per_group"], ids=lambda group: str(group["group"]))
def test_norms_of_all_components_match_the_golden_file(expected: dict[str, Any]) -> None:
    index = expected["group"]
    found = decomposed(index)
    for name in ("task", "entropy", "kl"):
        assert_close(found.norms[name], expected[f"norm_{name}"], TOLERANCE)
    assert_close(found.regulariser, expected["norm_reg"], TOLERANCE)
    assert_close(found.dominance, expected["dominance"], TOLERANCE)
    assert_close(double(FILE["rewards"][index]).std(), expected["reward_std"], TOLERANCE)


@pytest.mark.parametrize("expected", FILE["per_group"], ids=lambda group: str(group["group"]))
def test_the_task_gradient_stays_below_its_bound(expected: dict[str, Any]) -> None:
    index = expected["group"]
    bound = expected["cauchy_schwarz_bound"]
    assert decomposed(index).norms["task"] <= bound + TOLERANCE


@pytest.mark.parametrize("num_buckets", sorted(FILE["quantile_buckets"], key=int))
def test_equal_buckets_match_the_golden_file(num_buckets: str) -> None:
    assert quantile_buckets(STDS, int(num_buckets)) == FILE["quantile_buckets"][num_buckets]


def test_fewer_groups_make_fewer_buckets() -> None:
    assert quantile_buckets([0.3, 0.1], 6) == [[1], [0]]
    assert quantile_buckets([], 6) == []
