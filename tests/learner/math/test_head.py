from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from learner.head import onepass, recompute
from learner.losses.epo import EpoOptions, EpoStep
from learner.losses.kl import KlOptions
from learner.losses.ppo import PpoOptions
from learner.losses.step_loss import LossOptions, TokenTerms, step_token_losses
from tests.support.plain_entropy import token_entropies, token_logprobs

Inputs = tuple[Tensor, Tensor, Tensor]


def make_inputs(
    num_tokens: int = 7, hidden: int = 4, vocabulary: int = 9, dtype: torch.dtype = torch.float64
) -> Inputs:
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(num_tokens, hidden, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = (2 * torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    return states, weight, torch.randint(vocabulary, (num_tokens,), generator=generator)


def plain(states: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = states @ weight.T
    logprobs = token_logprobs(logits, targets, temperature=temperature)
    return logprobs, token_entropies(logits, temperature=temperature)


def make_terms(num_tokens: int, logprobs: Tensor) -> TokenTerms:
    generator = torch.Generator().manual_seed(5)

    def random() -> Tensor:
        return torch.randn(num_tokens, generator=generator, dtype=logprobs.dtype)

    return TokenTerms(
        advantages_N=random(),
        anchor_logprobs_N=logprobs.detach() + 0.3 * random(),
        correction_weights_N=random().exp().clamp(max=2.0),
        policy_weights_N=random().abs(),
        entropy_weights_N=random().abs(),
        reference_logprobs_N=logprobs.detach() + 0.3 * random(),
    )


OPTIONS = LossOptions(
    ppo=PpoOptions(dual_clip=3.0),
    epo=EpoOptions(entropy_coefficient=0.1, smooth_coefficient=1.0, alpha=0.5, kappa_low=0.8, kappa_high=1.2),
    kl=KlOptions(coefficient=0.1),
)
STEP = EpoStep(beta=1.5, reference=1.2)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_elements", [1, 20, 2**24])
def test_recompute_has_exact_gradients_of_both_outputs(temperature: float, chunk_elements: int) -> None:
    states, weight, targets = make_inputs()

    def run(states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return recompute(states, weight, targets, temperature=temperature, chunk_elements=chunk_elements)

    assert torch.autograd.gradcheck(run, (states, weight))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_elements", [1, 20, 2**24])
def test_onepass_equals_the_whole_loss_on_full_logits(temperature: float, chunk_elements: int) -> None:
    states, weight, targets = make_inputs()
    logprobs, entropies = plain(states, weight, targets, temperature)
    terms = make_terms(len(targets), logprobs)
    expected = step_token_losses(logprobs, entropies, terms, OPTIONS, STEP).sum()
    expected_gradients = torch.autograd.grad(expected, (states, weight))

    def token_loss(logprobs_n: Tensor, entropies_n: Tensor, tokens: slice) -> Tensor:
        return step_token_losses(logprobs_n, entropies_n, terms.take(tokens), OPTIONS, STEP)

    output = onepass(states, weight, targets, token_loss, temperature=temperature, chunk_elements=chunk_elements)
    gradients = torch.autograd.grad(output.loss * 2.5, (states, weight))
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.logprobs_N, logprobs.detach())
    torch.testing.assert_close(output.entropies_N, entropies.detach())
    for actual, whole in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(actual, 2.5 * whole)


def test_a_tied_head_collects_the_gradients_of_both_its_uses() -> None:
    _, weight, targets = make_inputs()
    tied = weight[targets] * 1.0
    output = onepass(tied, weight, targets.flip(0), lambda logprobs, entropies, tokens: -logprobs - 0.1 * entropies)
    (actual,) = torch.autograd.grad(output.loss, weight)
    logprobs, entropies = plain(weight[targets] * 1.0, weight, targets.flip(0), 1.0)
    (expected,) = torch.autograd.grad((-logprobs - 0.1 * entropies).sum(), weight)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("which", ["recompute", "onepass"])
def test_bfloat16_weights_reduce_in_float32(which: str) -> None:
    states, weight, targets = make_inputs(num_tokens=33, hidden=16, vocabulary=50, dtype=torch.bfloat16)
    exact_states, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (states, weight))
    logprobs, entropies = plain(exact_states, exact_weight, targets, 1.0)
    expected = torch.autograd.grad((logprobs + 0.1 * entropies).sum(), (exact_states, exact_weight))
    if which == "recompute":
        actual_logprobs, actual_entropies = recompute(states, weight, targets, chunk_elements=500)
        loss = (actual_logprobs + 0.1 * actual_entropies).sum()
    else:
        output = onepass(states, weight, targets, lambda lp, entropy, tokens: lp + 0.1 * entropy, chunk_elements=500)
        actual_logprobs, loss = output.logprobs_N, output.loss
    gradients = torch.autograd.grad(loss, (states, weight))
    assert actual_logprobs.dtype == torch.float32
    torch.testing.assert_close(actual_logprobs.detach().double(), logprobs.detach(), atol=0.1, rtol=0.05)
    for gradient, exact in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient.double() - exact).norm() < 0.02 * exact.norm()


def test_float32_is_exact_against_float64() -> None:
    states, weight, targets = make_inputs(num_tokens=40, hidden=32, vocabulary=300, dtype=torch.float32)
    logprobs, entropies = recompute(states, weight, targets, chunk_elements=3000)
    exact_logprobs, exact_entropies = plain(states.double(), weight.double(), targets, 1.0)
    torch.testing.assert_close(logprobs.double(), exact_logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies.double(), exact_entropies, atol=1e-5, rtol=1e-5)


def test_chunks_change_nothing() -> None:
    states, weight, targets = make_inputs(num_tokens=23, vocabulary=31)
    whole = recompute(states, weight, targets)
    for chunk_elements in (1, 31, 100, 31 * 23):
        parts = recompute(states, weight, targets, chunk_elements=chunk_elements)
        for part, reference in zip(parts, whole, strict=True):
            torch.testing.assert_close(part, reference, atol=1e-13, rtol=1e-13)


def test_an_entropy_is_never_negative_even_where_the_policy_is_certain() -> None:
    states, weight = torch.tensor([[80.0]]), torch.tensor([[1.0], [0.0], [-1.0]])
    _, entropies = recompute(states, weight, torch.tensor([0]))
    assert entropies.item() >= 0


@pytest.mark.parametrize("part", [0, 1])
def test_a_frozen_side_gets_no_gradient(part: int) -> None:
    states, weight, targets = make_inputs()
    (states, weight)[part].requires_grad_(False)
    onepass(states, weight, targets, lambda logprobs, entropies, tokens: logprobs).loss.backward()
    assert (states, weight)[part].grad is None
    assert (states, weight)[1 - part].grad is not None


def test_without_gradients_onepass_only_evaluates() -> None:
    states, weight, targets = make_inputs()
    with torch.no_grad():
        output = onepass(states, weight, targets, lambda logprobs, entropies, tokens: logprobs)
    assert not output.loss.requires_grad
    torch.testing.assert_close(output.loss, output.logprobs_N.sum())


def test_no_trained_token_gives_a_zero_loss_and_zero_gradients() -> None:
    states, weight, targets = make_inputs(num_tokens=0)
    output = onepass(states, weight, targets, lambda logprobs, entropies, tokens: logprobs)
    output.loss.backward()
    assert output.loss.item() == 0
    assert weight.grad is not None
    assert not weight.grad.any()


def test_a_second_backward_of_onepass_is_refused() -> None:
    states, weight, targets = make_inputs()
    loss = onepass(states, weight, targets, lambda logprobs, entropies, tokens: logprobs).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="use recompute"):
        loss.backward()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda states, weight, targets: (states[:, :2], weight, targets),
        lambda states, weight, targets: (states, weight, targets[1:]),
        lambda states, weight, targets: (states.float(), weight, targets),
    ],
)
def test_inputs_that_do_not_fit_are_refused(spoil: Callable[[Tensor, Tensor, Tensor], Inputs]) -> None:
    with pytest.raises(ValueError, match=r"fit|targets|head is"):
        recompute(*spoil(*make_inputs()))
