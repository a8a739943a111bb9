from typing import Any

import pytest
import torch

from learner.head import recompute
from tests.learner.math.golden_files import assert_close, double, golden
from tests.support.plain_entropy import token_entropies, token_logprobs

FILE = golden("token_entropy")
CASES = pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["name"])


@CASES
def test_entropy_logprobs_and_gradient_match_the_golden_file(case: dict[str, Any]) -> None:
    logits = double([case["logits"]]).requires_grad_()
    entropy = token_entropies(logits, temperature=case["temperature"])
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert_close(entropy[0], case["entropy_nats"], FILE["tolerance_abs"])
    assert_close(gradient[0], case["d_entropy_d_logits"], FILE["tolerance_abs"])
    for target, expected in enumerate(case["logprobs"]):
        actual = token_logprobs(logits, torch.tensor([target]), temperature=case["temperature"])
        assert_close(actual[0], expected, FILE["tolerance_abs"])


@CASES
def test_the_chunked_head_matches_the_golden_file(case: dict[str, Any]) -> None:
    # With the identity as head the hidden state is the logits.
    logits = double([case["logits"]] * len(case["logits"])).requires_grad_()
    head = torch.eye(logits.shape[1], dtype=torch.float64)
    targets = torch.arange(logits.shape[1])
    logprobs, entropies = recompute(logits, head, targets, temperature=case["temperature"], chunk_elements=10)
    (gradient,) = torch.autograd.grad(entropies.sum(), logits)
    assert_close(logprobs, case["logprobs"], FILE["tolerance_abs"])
    assert_close(entropies, [case["entropy_nats"]] * len(targets), FILE["tolerance_abs"])
    assert_close(gradient[0], case["d_entropy_d_logits"], FILE["tolerance_abs"])


def test_a_logit_of_minus_infinity_is_probability_zero() -> None:
    logits = double([[0.0, 0.0, -float("inf")]]).requires_grad_()
    entropy = token_entropies(logits)
    entropy.sum().backward()
    assert_close(entropy[0], 0.6931471805599453, 1e-12)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
