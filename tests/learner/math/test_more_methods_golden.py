from dataclasses import replace
from typing import Any

import pytest
import torch

from learner.advantages.entropy_advantage import with_entropy_bonus
from learner.advantages.gae import gae, two_level_gae, whiten
from learner.advantages.gigpo import anchor_index, discounted_returns, gigpo
from learner.advantages.overlong import overlong_penalty
from learner.advantages.soft_reweight import group_weights
from learner.filters.fraction import Fraction
from learner.filters.min_p import MinP
from learner.filters.selection import GroupFilter
from learner.filters.std_linear import StdLinear
from learner.filters.std_softmax import StdSoftmax
from learner.filters.top_k import TopK
from learner.losses.aggregation import token_weights
from learner.losses.gspo import sequence_ratios, sequence_surrogate
from learner.losses.off_policy import Correction, CorrectionInputs, OffPolicyOptions, correct
from learner.losses.ppo import PpoOptions, clipped_surrogate
from learner.losses.sequence_weights import geometric_means
from tests.learner.math.golden_files import assert_close, double, golden
from tests.learner.math.layouts import layout_of

PPO = golden("ppo_loss")
OFF_POLICY = PPO["off_policy"]
TOLERANCE = PPO["tolerance_abs"]
EA = golden("entropy_advantage")
GROUPS = golden("advantages_group")
GIGPO = golden("advantages_gigpo")
GAE = golden("advantages_gae")
SNR = golden("snr_filter")


def off_policy_inputs() -> CorrectionInputs:
    return CorrectionInputs(
        proximal_logprobs_N=double(OFF_POLICY["prox_logp"]).flatten(),
        behavior_logprobs_N=double(OFF_POLICY["behave_logp"]).flatten(),
        mask_N=double(OFF_POLICY["mask"]).flatten(),
        layout=layout_of([[row] for row in OFF_POLICY["cur_logp"]]),
    )


def token_mean_loss(correction: Correction, inputs: CorrectionInputs) -> float:
    current, advantages = double(OFF_POLICY["cur_logp"]).flatten(), double(OFF_POLICY["advantage"]).flatten()
    losses = clipped_surrogate(current, correction.anchor_logprobs_N, advantages, PpoOptions())
    weights = token_weights("token_mean", inputs.layout, correction.mask_N, dtype=torch.float64)
    return (weights * correction.weights_N * losses).sum().item()


def flat(rows: Any) -> list[Any]:
    return [value for row in rows for value in row]


def test_icepop_matches_the_golden_file() -> None:
    expected, inputs = OFF_POLICY["icepop"], off_policy_inputs()
    correction = correct(OffPolicyOptions(mode="icepop", lower=expected["low"], upper=expected["high"]), inputs)
    assert_close(correction.weights_N, flat(expected["weight"]), TOLERANCE)
    assert_close(token_mean_loss(correction, inputs), expected["loss"], TOLERANCE)


def test_token_rejection_matches_the_golden_file() -> None:
    expected, inputs = OFF_POLICY["token_rejection"], off_policy_inputs()
    options = OffPolicyOptions(mode="token_rejection", lower=expected["low"], upper=expected["high"])
    correction = correct(options, inputs)
    assert correction.mask_N.tolist() == flat(expected["new_mask"])
    assert_close(token_mean_loss(correction, inputs), expected["loss"], TOLERANCE)


def test_sequence_tis_matches_the_golden_file() -> None:
    expected, inputs = OFF_POLICY["seq_tis"], off_policy_inputs()
    correction = correct(OffPolicyOptions(mode="sequence_tis", cap=expected["cap"]), inputs)
    assert_close(correction.weights_N.view(3, 4)[:, 0], expected["weight"], TOLERANCE)
    assert_close(token_mean_loss(correction, inputs), expected["loss"], TOLERANCE)


def test_sequence_mis_matches_the_golden_file() -> None:
    expected, inputs = OFF_POLICY["seq_mis"], off_policy_inputs()
    options = OffPolicyOptions(mode="sequence_mis", lower=expected["low"], upper=expected["high"])
    correction = correct(options, inputs)
    assert_close(correction.weights_N.view(3, 4)[:, 0], expected["weight"], TOLERANCE)
    assert correction.mask_N.view(3, 4).any(dim=1).tolist() == expected["kept"]
    assert_close(token_mean_loss(correction, inputs), expected["loss"], TOLERANCE)


def test_geometric_rejection_matches_the_golden_file() -> None:
    expected, inputs = OFF_POLICY["geo_rejection"], off_policy_inputs()
    options = OffPolicyOptions(mode="geometric_rejection", lower=expected["low"], upper=expected["high"])
    assert_close(geometric_means(inputs), expected["geo"], TOLERANCE)
    assert correct(options, inputs).mask_N.view(3, 4).any(dim=1).tolist() == expected["kept"]


def test_the_log_linear_proximal_policy_matches_the_golden_file() -> None:
    expected = OFF_POLICY["prox_log_linear"]
    current = double(OFF_POLICY["cur_logp"]).flatten()
    # The file's proximal policy is one training step behind the current one, as ours is.
    assert expected["version_prox"] == expected["version_theta"] - 1
    lags = torch.full((len(current),), expected["version_theta"] - expected["version_behave"])
    correction = correct(OffPolicyOptions(mode="log_linear"), replace(off_policy_inputs(), lags_N=lags))
    assert correction.interpolation is not None
    actual, _ = correction.interpolation.at(current)
    assert_close(actual.view(3, 4), expected["approx_prox_logp"], TOLERANCE)


def test_gspo_matches_the_golden_file() -> None:
    expected, layout = PPO["gspo"], layout_of([[row] for row in PPO["logp"]])
    logprobs, anchor, mask = (double(PPO[key]).flatten() for key in ("logp", "old_logp", "mask"))
    ratios = sequence_ratios(logprobs, anchor, mask, layout)
    losses = sequence_surrogate(
        ratios, double(expected["seq_advantage"]), clip_low=expected["eps_low"], clip_high=expected["eps_high"]
    )
    assert_close(ratios, expected["seq_ratio"], TOLERANCE)
    assert_close(losses, expected["seq_loss"], TOLERANCE)
    assert_close(losses.mean(), expected["loss"], TOLERANCE)


@pytest.mark.parametrize("case", EA["cases"], ids=lambda case: str(case["alpha"]))
def test_the_entropy_advantage_matches_the_golden_file(case: dict[str, Any]) -> None:
    shaped = with_entropy_bonus(
        double(case["advantage"]), double(case["entropy"]), alpha=case["alpha"], kappa=case["kappa"]
    )
    assert_close(shaped, case["shaped"], EA["tolerance_abs"])


def test_the_overlong_penalty_matches_the_golden_file() -> None:
    case = GROUPS["dapo_soft_overlong"]
    for length, expected in zip(case["lengths"], case["penalty"], strict=True):
        actual = overlong_penalty(length, max_tokens=case["L_max"], soft_tokens=case["L_cache"])
        assert_close(actual, expected, GROUPS["tolerance_abs"])


def test_soft_reweighting_matches_the_golden_file() -> None:
    weights = group_weights(double(GROUPS["scores"]), torch.tensor(GROUPS["group"]))
    for group, weight in zip(GROUPS["group"], weights, strict=True):
        assert_close(weight, GROUPS["soft_reweight_weight_by_group"][str(group)], GROUPS["tolerance_abs"])


@pytest.mark.parametrize("divide_by_std", [False, True])
@pytest.mark.parametrize("episode_over_turns", [False, True])
def test_gigpo_matches_the_golden_file(divide_by_std: bool, episode_over_turns: bool) -> None:
    names = list(dict.fromkeys(GIGPO["traj"]))
    rewards = [[r for r, name in zip(GIGPO["step_reward"], GIGPO["traj"], strict=True) if name == n] for n in names]
    layout = layout_of([[[0]] * len(member) for member in rewards])
    turn_returns = double(flat([discounted_returns(member, discount=GIGPO["gamma"]) for member in rewards]))
    assert_close(turn_returns, GIGPO["step_return"], GIGPO["tolerance_abs"])
    actual = gigpo(
        double([sum(member) for member in rewards]),
        turn_returns,
        anchor_index(GIGPO["anchor_obs"], layout.group_index_K),
        layout,
        omega=GIGPO["omega"],
        divide_by_std=divide_by_std,
        episode_over_turns=episode_over_turns,
    )
    mode = "mean_std_norm" if divide_by_std else "mean_norm"
    scope = "all_rows" if episode_over_turns else "trajectory_dedup"
    assert_close(actual, GIGPO[f"{mode}_{scope}"]["A"], GIGPO["tolerance_abs"])


def masked(row: list[float], mask: list[int]) -> list[float]:
    return [value for value, keep in zip(row, mask, strict=True) if keep]


@pytest.mark.parametrize("case", GAE["cases"], ids=lambda case: f"{case['gamma']}-{case['lam']}")
def test_token_gae_matches_the_golden_file(case: dict[str, Any]) -> None:
    expected = case["mask_skipping"]
    settings = {"discount": case["gamma"], "smoothing": case["lam"]}
    actual = [
        gae(masked(rewards, mask), masked(values, mask), **settings)
        for rewards, values, mask in zip(GAE["token_rewards"], GAE["values"], GAE["mask"], strict=True)
    ]
    wanted = [masked(row, mask) for row, mask in zip(expected["adv"], GAE["mask"], strict=True)]
    assert_close(double(flat(actual)), flat(wanted), GAE["tolerance_abs"])
    whitened = [masked(row, mask) for row, mask in zip(expected["whitened"], GAE["mask"], strict=True)]
    everything = torch.ones(len(flat(actual)))
    assert_close(whiten(double(flat(actual)), everything), flat(whitened), GAE["tolerance_abs"])


@pytest.mark.parametrize("case", GAE["cases"], ids=lambda case: f"{case['gamma']}-{case['lam']}")
def test_plain_gae_over_all_positions_matches_the_golden_file(case: dict[str, Any]) -> None:
    for rewards, values, expected in zip(GAE["token_rewards"], GAE["values"], case["plain"]["adv"], strict=True):
        actual = gae(rewards, values, discount=case["gamma"], smoothing=case["lam"])
        assert_close(double(actual), expected, GAE["tolerance_abs"])


@pytest.mark.parametrize("case", GAE["turn_level"], ids=lambda case: f"{case['gamma']}-{case['lam']}")
def test_turn_gae_matches_the_golden_file(case: dict[str, Any]) -> None:
    actual = gae(case["turn_rewards"], case["turn_values"], discount=case["gamma"], smoothing=case["lam"])
    assert_close(double(actual), case["adv"], GAE["tolerance_abs"])


def split_turns(rewards: list[float], values: list[float]) -> tuple[list[float], list[list[float]]]:
    """Turns as the released code sees them: each ends at a token with a reward."""
    turns: list[list[float]] = [[]]
    turn_rewards: list[float] = []
    for reward, value in zip(rewards, values, strict=True):
        turns[-1].append(value)
        if reward:
            turn_rewards.append(reward)
            turns.append([])
    return turn_rewards, turns[:-1]


@pytest.mark.parametrize("case", GAE["cases"], ids=lambda case: f"{case['gamma']}-{case['lam']}")
def test_two_level_gae_matches_the_golden_file(case: dict[str, Any]) -> None:
    expected = case["bi_level"]
    for row in (0, 1):
        mask = GAE["mask"][row]
        turn_rewards, turns = split_turns(masked(GAE["token_rewards"][row], mask), masked(GAE["values"][row], mask))
        actual = two_level_gae(
            turn_rewards,
            turns,
            turn_discount=expected["high_level_gamma"],
            discount=case["gamma"],
            smoothing=case["lam"],
        )
        assert_close(double(flat(actual)), masked(expected["adv"][row], mask), GAE["tolerance_abs"])


def test_two_level_gae_matches_the_released_example() -> None:
    case = GAE["bilevel_repo_selftest"]
    turn_rewards, turns = split_turns(case["rewards"][0], case["values"][0])
    advantages = double(flat(two_level_gae(turn_rewards, turns, turn_discount=case["high_level_gamma"])))
    assert_close(advantages, case["adv"][0], GAE["tolerance_abs"])
    assert_close(whiten(advantages, torch.ones(10)), case["adv_whitened"][0], GAE["tolerance_abs"])


RULES: dict[str, GroupFilter] = {
    **{f"article_fraction_of_prompts_p{share}": Fraction(share=share) for share in (0.5, 0.9, 1.0)},
    **{f"top_k_fraction_{share}": TopK(share=share) for share in (0.25, 0.5)},
    "top_k_abs_3": TopK(num_groups=3),
    **{f"min_p_{share}": MinP(share=share) for share in (0.05, 0.2, 0.8)},
    **{f"ragen_linear_std_eps0.01_excl_zero_p{mass}": StdLinear(mass=mass) for mass in (0.5, 0.9, 1.0)},
    **{
        f"ragen_linear_std_eps0.01_incl_zero_p{mass}": StdLinear(mass=mass, include_zero=True)
        for mass in (0.5, 0.9, 1.0)
    },
    **{
        f"ragen_softmax_std_{name}_zero_p{mass}": StdSoftmax(mass=mass, include_zero=name == "incl")
        for mass in (0.5, 0.9, 1.0)
        for name in ("incl", "excl")
    },
    "reverse_linear_std_p0.5": StdLinear(mass=0.5, smallest_first=True),
}


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("case", SNR["cases"], ids=lambda case: case["name"])
def test_other_filter_rules_match_the_golden_file(case: dict[str, Any], name: str) -> None:
    kept = RULES[name].select(case["variance_ddof1"]).kept
    scores = case["variance_ddof1"]
    assert sorted(scores[index] for index in kept) == sorted(scores[index] for index in case["select"][name])
