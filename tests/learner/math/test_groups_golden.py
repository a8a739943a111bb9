from typing import Any

import pytest
import torch

from learner.advantages import GROUP_ADVANTAGES
from learner.advantages.group_moments import group_stds
from learner.advantages.over_turns import grpo_over_turns
from learner.advantages.standardise import standardise
from learner.advantages.turn_inputs import TurnInputs
from learner.advantages.turn_level import discounted_gains, token_advantages, turn_terms
from learner.filters.has_variance import HasVariance
from learner.filters.loss_scaling import LOSS_SCALINGS
from learner.filters.scores import GroupReturns, return_plus_turn_variance, return_variance, rv_std_over_mean
from learner.filters.variance_mass import VarianceMass
from tests.learner.math.golden_files import assert_close, double, golden
from tests.learner.math.layouts import layout_of

GROUPS = golden("advantages_group")
TURNS = golden("turn_level")
SNR = golden("snr_filter")


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_group_advantages_match_the_golden_file(name: str) -> None:
    scores, group = double(GROUPS["scores"]), torch.tensor(GROUPS["group"])
    assert_close(GROUP_ADVANTAGES[name](scores, group), GROUPS[name], GROUPS["tolerance_abs"])


def test_group_std_matches_the_golden_file_where_a_group_has_members_to_compare() -> None:
    scores, group = double(GROUPS["scores"]), torch.tensor(GROUPS["group"])
    assert_close(group_stds(scores, group)[:12], GROUPS["group_std_ddof1"][:12], GROUPS["tolerance_abs"])


def test_grpo_by_the_population_std_matches_the_golden_file() -> None:
    actual = standardise(double(GROUPS["scores"]), torch.tensor(GROUPS["group"]), ddof=0)
    assert_close(actual, GROUPS["grpo_population_std"], GROUPS["tolerance_abs"])


def test_dynamic_sampling_keeps_the_groups_of_the_golden_file() -> None:
    scores = [[s for s, g in zip(GROUPS["scores"], GROUPS["group"], strict=True) if g == group] for group in range(3)]
    variances = [return_variance(GroupReturns(returns=tuple(group))) for group in scores]
    assert sorted(HasVariance().select(variances).kept) == GROUPS["dapo_dynamic_sampling_kept_groups"]
    case = GROUPS["dapo_acc_rule_kept_groups_binary_example"]
    variances = [return_variance(GroupReturns(returns=tuple(map(float, group)))) for group in case["acc"]]
    assert list(HasVariance().select(variances).kept) == case["kept"]


def test_grpo_over_turns_matches_the_golden_rows() -> None:
    rows = GROUPS["multi_turn_rows"]
    names = list(dict.fromkeys(rows["traj"]))
    layout = layout_of([[[0]] * rows["traj"].count(name) for name in names])
    returns = double([rows["score"][rows["traj"].index(name)] for name in names])
    actual = grpo_over_turns(TurnInputs(trajectories=(), returns_J=returns, layout=layout))
    by_name = dict(zip([name for name in names for _ in range(rows["traj"].count(name))], actual.tolist(), strict=True))
    assert_close(double([by_name[name] for name in rows["traj"]]), rows["grpo_over_rows"], GROUPS["tolerance_abs"])


def test_grpo_over_trajectories_matches_the_deduplicated_golden_rows() -> None:
    rows = GROUPS["multi_turn_rows"]
    trajectories = list(dict.fromkeys(rows["traj"]))
    scores = double([rows["score"][rows["traj"].index(name)] for name in trajectories])
    by_trajectory = GROUP_ADVANTAGES["grpo"](scores, torch.zeros(len(trajectories), dtype=torch.int64))
    by_row = [by_trajectory[trajectories.index(name)].item() for name in rows["traj"]]
    assert_close(double(by_row), rows["grpo_dedup_trajectories"], GROUPS["tolerance_abs"])


@pytest.mark.parametrize("case", TURNS["cases"], ids=lambda case: case["name"])
def test_turn_level_advantages_match_the_golden_file(case: dict[str, Any]) -> None:
    gains = [discounted_gains(progress, discount=case["gamma"]) for progress in case["progress"]]
    for actual, expected in zip(gains, case["G"], strict=True):
        assert_close(double(actual), expected, TURNS["tolerance_abs"])
    layout = layout_of([[[0]] * len(member) for member in gains])
    flat_gains = double([gain for member in gains for gain in member])
    everywhere = torch.ones_like(flat_gains, dtype=torch.bool)
    terms = turn_terms(flat_gains, layout.group_index_K, everywhere)
    assert_close(terms, [z for member in case["Z"] for z in member], TURNS["tolerance_abs"])
    group_advantages = GROUP_ADVANTAGES["grpo"](double(case["episode_return"]), layout.group_index_J)
    assert_close(group_advantages, case["A_group"], TURNS["tolerance_abs"])
    advantages = token_advantages(layout, group_advantages[layout.trajectory_index_N], terms)
    assert_close(advantages, [a for member in case["A_turn_w1"] for a in member], TURNS["tolerance_abs"])
    mean_gains = tuple(sum(member) / len(member) for member in gains)
    group = GroupReturns(returns=tuple(case["episode_return"]), mean_gains=mean_gains)
    assert_close(return_variance(group), case["snr_score_return"], TURNS["tolerance_abs"])
    assert_close(return_plus_turn_variance(group), case["snr_score_return_plus_turn"], TURNS["tolerance_abs"])


@pytest.mark.parametrize("case", SNR["cases"], ids=lambda case: case["name"])
@pytest.mark.parametrize("mass", [0.5, 0.9, 1.0])
def test_the_variance_mass_rule_matches_the_golden_file(case: dict[str, Any], mass: float) -> None:
    variances = [return_variance(GroupReturns(returns=tuple(returns))) for returns in case["rewards"]]
    assert_close(double(variances), case["variance_ddof1"], 1e-9)
    rule = VarianceMass(mass=mass).select(variances)
    assert sorted(rule.kept) == sorted(case["select"][f"paper_variance_mass_excl_zero_eps0.01_p{mass}"])
    plain = VarianceMass(mass=mass, epsilon=0.0, include_zero=True).select(variances)
    assert sorted(plain.kept) == sorted(case["select"][f"paper_variance_mass_p{mass}"])
    if mass == 0.9:
        assert_close(rule.kept_ratio, case["kept_ratio_paper_excl_zero_p0.9"], 1e-9)
        for name, expected in case["loss_scale"].items():
            assert_close(LOSS_SCALINGS[name](rule.kept_ratio), expected, 1e-9)
    if case["rv_std_over_mean"] is not None:
        assert_close(rv_std_over_mean(variances), case["rv_std_over_mean"], 1e-9)
