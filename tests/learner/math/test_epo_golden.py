from typing import Any

import pytest
import torch

from learner.diagnostics.turn_entropy import entropy_by_turn
from learner.losses.aggregation import token_weights
from learner.losses.entropy_history import EntropyHistory, HistoryOptions, TurnEntropyHistory, released_row
from learner.losses.epo import EpoOptions, beta, corridor_penalty, dynamic_weight, entropy_losses, epo_step
from tests.learner.math.golden_files import assert_close, double, golden
from tests.learner.math.layouts import flatten, layout_of

FILE = golden("epo_loss")
TOLERANCE = FILE["tolerance_abs"]
BETA = golden("epo_beta")
AVERAGES = {"nested": "nested", "token_mean": "token_mean", "row_mean": "turn_mean"}


def options_of(run: dict[str, Any], form: str = "hinge") -> EpoOptions:
    return EpoOptions(
        entropy_coefficient=run["lambda_"],
        alpha=run["alpha"],
        kappa_low=run["kappa_l"],
        kappa_high=run["kappa_r"],
        gamma=run["gamma"],
        form=form,
    )


@pytest.mark.parametrize("case", BETA["paper"], ids=lambda case: f"K{case['K']}-gamma{case['gamma']}")
def test_beta_matches_the_golden_file(case: dict[str, Any]) -> None:
    for step, expected in zip(case["k"], case["beta"], strict=True):
        assert_close(beta(step, case["K"], gamma=case["gamma"]), expected, BETA["tolerance_abs"])


def test_the_released_weight_matches_the_golden_file() -> None:
    case, options = BETA["repo_weight"], EpoOptions(weight_schedule="released")
    for epoch, expected in zip(case["epoch"], case["weight"], strict=True):
        assert_close(dynamic_weight(options, epoch, case["max_epochs"]), expected, BETA["tolerance_abs"])


@pytest.mark.parametrize("run", FILE["runs"], ids=lambda run: f"{run['kappa_l']}-{run['kappa_r']}-{run['alpha']}")
@pytest.mark.parametrize("form", ["hinge", "indicator"])
def test_four_steps_of_epo_match_the_golden_file(run: dict[str, Any], form: str) -> None:
    options, history = options_of(run, form), EntropyHistory()
    for expected, nested in zip(run["steps"], FILE["entropies"], strict=True):
        entropies, layout = flatten(nested).requires_grad_(), layout_of(nested)
        everything = torch.ones_like(entropies)
        step = epo_step(options, history, expected["k"], run["K"])
        assert_close(step.beta, expected["beta_k"], TOLERANCE)
        if expected["H_bar_W_k"] is None:
            assert step.reference is None
        else:
            assert_close(step.reference or 0.0, expected["H_bar_W_k"], TOLERANCE)
        penalty = options.alpha * corridor_penalty(entropies, step, options)
        assert_close(penalty.detach(), flatten(expected[f"per_token_penalty_{form}"]).tolist(), TOLERANCE)
        losses = entropy_losses(entropies, step, options)
        for name, kind in AVERAGES.items():
            weights = token_weights(kind, layout, everything, dtype=torch.float64)
            assert_close((weights * entropies).sum().detach(), expected[f"L_H_{name}"], TOLERANCE)
            if name == "row_mean":
                continue
            assert_close((weights * penalty).sum().detach(), expected[f"L_smooth_{name}_{form}"], TOLERANCE)
            assert_close((weights * losses).sum().detach(), expected[f"entropy_term_{name}_{form}"], TOLERANCE)
            if form == "hinge":
                (gradient,) = torch.autograd.grad((weights * losses).sum(), entropies, retain_graph=True)
                assert_close(gradient, flatten(expected[f"dloss_dH_hinge_{name}"]).tolist(), TOLERANCE)
        mean = entropies.mean().item()
        assert_close(mean, expected["H_bar_k_token_mean"], TOLERANCE)
        history = history.appended(mean)


@pytest.mark.parametrize("case", FILE["full_loss"], ids=lambda case: f"{case['kappa_r']}-{case['alpha']}-{case['k']}")
def test_the_full_loss_matches_the_golden_file(case: dict[str, Any]) -> None:
    run = {**case, "gamma": 3.0, "lambda_": 0.001}
    history = EntropyHistory()
    for earlier in FILE["entropies"][: case["k"]]:
        history = history.appended(flatten(earlier).mean().item())
    nested = FILE["entropies"][case["k"]]
    for key in ("nested_hinge", "token_mean_hinge", "token_mean_indicator"):
        average, form = key.rsplit("_", 1)
        options = options_of(run, form)
        entropies, layout = flatten(nested), layout_of(nested)
        weights = token_weights(average, layout, torch.ones_like(entropies), dtype=torch.float64)
        step = epo_step(options, history, case["k"], case["K"])
        loss = case["L_MT"] + (weights * entropy_losses(entropies, step, options)).sum()
        assert_close(loss, case[f"L_EPO_{key}"], TOLERANCE)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("cumulative_mean_before_step", HistoryOptions()),
        ("sliding_w2_before_step", HistoryOptions(kind="sliding", window=2)),
        ("ema0.9_before_step", HistoryOptions(kind="ema", decay=0.9)),
    ],
)
def test_history_variants_match_the_golden_file(key: str, options: HistoryOptions) -> None:
    history = EntropyHistory(options=options)
    for nested, expected in zip(FILE["entropies"], FILE["history_variants"][key], strict=True):
        if expected is None:
            assert history.reference is None
        else:
            assert_close(history.reference or 0.0, expected, TOLERANCE)
        history = history.appended(flatten(nested).mean().item())


def test_a_history_that_holds_the_current_step_matches_the_golden_file() -> None:
    history = EntropyHistory()
    for nested, expected in zip(FILE["entropies"], FILE["history_variants"]["cumulative_mean_inclusive"], strict=True):
        history = history.appended(flatten(nested).mean().item())
        assert_close(history.reference or 0.0, expected, TOLERANCE)


def test_the_released_history_per_turn_matches_the_golden_file() -> None:
    case, history = FILE["repo_turn_history"], TurnEntropyHistory()
    for index, nested in enumerate(FILE["entropies"]):
        entropies = flatten(nested)
        by_turn = entropy_by_turn(entropies, torch.ones_like(entropies), layout_of(nested))
        row = released_row(by_turn, case["max_steps"])
        assert_close(double(row), case["per_step_row_left_padded"][index], TOLERANCE)
        history = history.appended(row)
        references = [value or 0.0 for value in history.references]
        assert_close(double(references), case["mean_history_given_to_actor"][index], TOLERANCE)
