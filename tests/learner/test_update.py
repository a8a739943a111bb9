"""One update against the same loss written plainly, and its guards."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from learner.batch import tensors_of, tokens_of_groups
from learner.filters.variance_mass import VarianceMass
from learner.losses.epo import EpoOptions, EpoStep
from learner.losses.off_policy import OffPolicyOptions
from learner.losses.ppo import PpoOptions
from learner.losses.step_loss import LossOptions
from learner.model import PolicyModel
from learner.schedule import RateSchedule
from learner.update import UpdateOptions, apply_update, score_rows, select_groups, step_terms
from tests.learner.batches import batch_of


def options(**changes: object) -> UpdateOptions:
    values: dict[str, object] = {
        "loss": LossOptions(ppo=PpoOptions(), epo=EpoOptions(entropy_coefficient=0.01)),
        "off_policy": OffPolicyOptions(),
        "aggregation": "token_mean",
        "estimator": "grpo",
        "turn_weight": 1.0,
        "temperature": 1.0,
        "max_grad_norm": 1e9,
        "schedule": RateSchedule(kind="constant", learning_rate=1e-3, warmup_steps=0, min_ratio=0.1, total_steps=10),
    }
    return UpdateOptions(**(values | changes))  # type: ignore[arg-type]


def optimizer_of(model: PolicyModel) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.module.parameters(), lr=1e-3, weight_decay=0.0)


def test_groups_without_variance_are_filtered_and_their_tokens_left_out() -> None:
    batch = batch_of()
    selection = select_groups(batch, VarianceMass(epsilon=0.0), "return")
    assert sorted(selection.kept) == [1, 2]
    pool, kept = tensors_of(batch), tensors_of(batch.restricted_to(selection.kept))
    index = tokens_of_groups(pool.layout, selection.kept)
    assert torch.equal(pool.behavior_logprobs_N[index], kept.behavior_logprobs_N)


def test_an_update_equals_plain_autograd_over_full_logits(model_dir: Path) -> None:
    model, chosen = PolicyModel.load(model_dir), options()
    kept = tensors_of(batch_of().restricted_to([1, 2]))
    proximal = score_rows(model, kept, temperature=1.0)
    terms = step_terms(kept, proximal, chosen, batch=0)
    reference = copy.deepcopy(model.module)
    step = EpoStep(beta=1.5, reference=proximal.entropies_N.mean().item() / 2.5)
    result = apply_update(model, optimizer_of(model), kept, terms, chosen, training_step=0, epo_step=step)
    weights_N = (proximal.logprobs_N - kept.behavior_logprobs_N).exp().clamp(max=2.0)
    logprobs, entropies = [], []
    for row in kept.rows:
        distributions = torch.log_softmax(reference(torch.tensor([row.ids])).logits[0], dim=-1)
        at = distributions[[position - 1 for position in row.positions]]
        logprobs.append(at[range(len(at)), [row.ids[position] for position in row.positions]])
        entropies.append(-(at.exp() * at).sum(dim=-1))
    logprobs_N, entropies_N = torch.cat(logprobs), torch.cat(entropies)
    advantages_N = terms.token_terms.advantages_N
    ratio_N = (logprobs_N - proximal.logprobs_N).exp()
    policy = -(weights_N * torch.minimum(ratio_N * advantages_N, ratio_N.clamp(0.8, 1.2) * advantages_N)).mean()
    assert step.reference is not None
    penalty_N = torch.relu(entropies_N - 2.0 * step.reference)
    shaped_N = -0.01 * entropies_N + 0.01 * 1.5 * 0.1 * penalty_N
    loss = policy + (terms.token_terms.entropy_weights_N * shaped_N).sum()
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), abs=1e-5)
    norm = torch.nn.utils.get_total_norm([p.grad for p in reference.parameters() if p.grad is not None])
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.0)
    plain.step()
    for ours, theirs in zip(model.module.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(model_dir: Path) -> None:
    model = PolicyModel.load(model_dir)
    kept = tensors_of(batch_of().restricted_to([1]))
    terms = step_terms(kept, score_rows(model, kept, temperature=1.0), options(), batch=0)
    terms.token_terms.advantages_N[3] = float("nan")
    before = [parameter.clone() for parameter in model.module.parameters()]
    result = apply_update(
        model, optimizer_of(model), kept, terms, options(), training_step=0, epo_step=EpoStep(beta=1.0, reference=None)
    )
    assert not result.is_applied
    assert all(torch.equal(a, b) for a, b in zip(before, model.module.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_extreme_behavior_logprobs_stay_finite(model_dir: Path) -> None:
    model = PolicyModel.load(model_dir)
    kept = tensors_of(batch_of().restricted_to([1]))
    kept.behavior_logprobs_N[:] = -100.0
    terms = step_terms(kept, score_rows(model, kept, temperature=1.0), options(), batch=0)
    result = apply_update(
        model, optimizer_of(model), kept, terms, options(), training_step=0, epo_step=EpoStep(beta=1.0, reference=None)
    )
    assert result.is_applied
    assert terms.correction.weights_N.max().item() == pytest.approx(2.0)


def test_the_control_run_permutes_the_same_advantages(model_dir: Path) -> None:
    kept = tensors_of(batch_of().restricted_to([1, 2]))
    model = PolicyModel.load(model_dir)
    proximal = score_rows(model, kept, temperature=1.0)
    plain = step_terms(kept, proximal, options(turn_weight=0.0), batch=0).token_terms.advantages_N
    permuted = step_terms(kept, proximal, options(turn_weight=0.0, permute_seed=1), batch=0).token_terms.advantages_N
    again = step_terms(kept, proximal, options(turn_weight=0.0, permute_seed=1), batch=0).token_terms.advantages_N
    assert not torch.equal(plain, permuted)
    assert torch.equal(permuted, again)
    assert set(plain.unique().tolist()) == set(permuted.unique().tolist())


def test_learning_rates_follow_the_training_step() -> None:
    def rates(kind: str) -> list[float]:
        schedule = RateSchedule(kind=kind, learning_rate=1.0, warmup_steps=2, min_ratio=0.2, total_steps=6)
        return [round(schedule.rate(step), 6) for step in range(7)]

    assert rates("constant") == [0.5, 1, 1, 1, 1, 1, 1]
    assert rates("linear") == [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2]
    assert rates("cosine") == [0.5, 1, 1, 0.882843, 0.6, 0.317157, 0.2]
