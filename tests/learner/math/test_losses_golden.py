from typing import Any

import pytest
import torch
from torch import Tensor

from learner.layout import TokenLayout
from learner.losses.aggregation import token_weights
from learner.losses.kl import KL_ESTIMATORS, k3_clamped
from learner.losses.off_policy import Correction, CorrectionInputs, OffPolicyOptions, behavior_weights, correct
from learner.losses.ppo import PpoOptions, clip_flags, clipped_surrogate
from tests.learner.math.golden_files import assert_close, double, golden
from tests.learner.math.layouts import flatten, layout_of

PPO = golden("ppo_loss")
OFF_POLICY = PPO["off_policy"]
TOLERANCE = PPO["tolerance_abs"]
KL = golden("kl")
AGGREGATION = golden("aggregation")


def one_turn_rows(rows: list[list[float]]) -> TokenLayout:
    return layout_of([[row] for row in rows])


@pytest.mark.parametrize("case", PPO["cases"], ids=lambda case: f"{case['clip_high']}-{case['dual_clip_c']}")
def test_the_clipped_surrogate_matches_the_golden_file(case: dict[str, Any]) -> None:
    options = PpoOptions(clip_low=case["clip_low"], clip_high=case["clip_high"], dual_clip=case["dual_clip_c"])
    logprobs = double(PPO["logp"]).flatten().requires_grad_()
    anchor, advantages = double(PPO["old_logp"]).flatten(), double(PPO["advantage"]).flatten()
    mask, layout = double(PPO["mask"]).flatten(), one_turn_rows(PPO["logp"])
    losses = clipped_surrogate(logprobs, anchor, advantages, options)
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    is_clipped, is_dual_clipped = clip_flags(logprobs.detach(), anchor, advantages, options)
    assert_close(losses.detach(), double(case["token_loss"]).flatten().tolist(), TOLERANCE)
    assert_close(gradient, double(case["dloss_dlogp"]).flatten().tolist(), TOLERANCE)
    assert is_clipped.tolist() == torch.tensor(case["clipped"]).flatten().tolist()
    assert is_dual_clipped.tolist() == torch.tensor(case["dual_clipped"]).flatten().tolist()
    assert_close((is_clipped * mask).sum() / mask.sum(), case["clipfrac"], TOLERANCE)
    assert_close((is_dual_clipped * mask).sum() / mask.sum(), case["clipfrac_dual"], TOLERANCE)
    for key, kind, constant in (
        ("agg_token-mean", "token_mean", None),
        ("agg_seq-mean-token-mean", "seq_mean_token_mean", None),
        ("agg_seq-mean-token-sum", "constant", 1.0),
        ("agg_dr-grpo-constant", "constant", float(PPO["dr_grpo_constant"])),
    ):
        weights = token_weights(kind, layout, mask, constant=constant, dtype=torch.float64)
        assert_close((weights * losses).sum().detach(), case[key], TOLERANCE)


def corrected_losses(options: OffPolicyOptions) -> tuple[Correction, Tensor, float]:
    rows = {key: double(OFF_POLICY[key]).flatten() for key in ("behave_logp", "prox_logp", "cur_logp", "advantage")}
    mask, layout = double(OFF_POLICY["mask"]).flatten(), one_turn_rows(OFF_POLICY["cur_logp"])
    inputs = CorrectionInputs(
        proximal_logprobs_N=rows["prox_logp"], behavior_logprobs_N=rows["behave_logp"], mask_N=mask, layout=layout
    )
    correction = correct(options, inputs)
    surrogate = clipped_surrogate(rows["cur_logp"], correction.anchor_logprobs_N, rows["advantage"], PpoOptions())
    losses = correction.weights_N * surrogate * mask
    weights = token_weights("token_mean", layout, correction.mask_N, dtype=torch.float64)
    return correction, losses, (weights * losses).sum().item()


def test_behavior_weights_match_the_golden_file() -> None:
    actual = behavior_weights(double(OFF_POLICY["prox_logp"]), double(OFF_POLICY["behave_logp"]))
    assert_close(actual, OFF_POLICY["w_prox_over_behave"], TOLERANCE)


def test_decoupled_with_token_tis_matches_the_golden_file() -> None:
    expected = OFF_POLICY["tis_token"]
    correction, _, loss = corrected_losses(OffPolicyOptions(cap=expected["cap"]))
    assert_close(correction.weights_N, double(expected["weight"]).flatten().tolist(), TOLERANCE)
    assert_close(loss, expected["loss"], TOLERANCE)


def test_decoupled_that_drops_over_the_cap_matches_the_golden_file() -> None:
    expected = OFF_POLICY["areal_decoupled"]
    _, losses, loss = corrected_losses(OffPolicyOptions(cap=expected["cap"], over_cap="drop"))
    assert_close(losses, double(expected["token_loss"]).flatten().tolist(), TOLERANCE)
    assert_close(loss, expected["loss"], TOLERANCE)


def test_kl_estimators_and_their_gradients_match_the_golden_file() -> None:
    reference = double(KL["ref_logp"])
    assert_close(k3_clamped(double(KL["logp"]), reference), KL["k3_clamped_10"], KL["tolerance_abs"])
    assert_close(KL_ESTIMATORS["abs"](double(KL["logp"]), reference), KL["abs"], KL["tolerance_abs"])
    for name in ("k1", "k2", "k3"):
        logprobs = double(KL["logp"]).requires_grad_()
        values = KL_ESTIMATORS[name](logprobs, reference)
        (gradient,) = torch.autograd.grad(values.sum(), logprobs)
        assert_close(values.detach(), KL[name], KL["tolerance_abs"])
        assert_close(gradient, KL[f"d_{name}"], KL["tolerance_abs"])


@pytest.mark.parametrize("kind", sorted(AGGREGATION["weights"]))
def test_aggregation_weights_match_the_golden_file(kind: str) -> None:
    mask, layout = flatten(AGGREGATION["final_mask"]), layout_of(AGGREGATION["final_mask"])
    constant = AGGREGATION["constant"] if kind == "constant" else None
    weights = token_weights(kind, layout, mask, constant=constant, dtype=torch.float64)
    assert_close(weights, flatten(AGGREGATION["weights"][kind]).tolist(), AGGREGATION["tolerance_abs"])
    loss = (weights * flatten(AGGREGATION["token_value"])).sum()
    assert_close(loss, AGGREGATION["loss"][kind], AGGREGATION["tolerance_abs"])
