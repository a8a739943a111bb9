from functools import partial
from typing import Any

import pytest
import torch

from learner.advantages.grpo import grpo
from learner.advantages.rlvmr import RULE_SETS, MetaTurn, RuleSet, appendix, rlvmr
from tests.learner.math.golden_files import assert_close, double, golden

FILE = golden("rlvmr")
RULES: dict[str, RuleSet] = {**RULE_SETS, "appendix_gamma0.9": partial(appendix, discount=0.9)}


def turn_of(row: dict[str, Any]) -> MetaTurn:
    return MetaTurn(
        output=row["output"],
        action=row["action"],
        format_valid=row["format_valid"],
        is_available=row["available"],
        state=row["state"],
        next_state=row["next_state"],
    )


@pytest.mark.parametrize("rules", sorted(RULES))
@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["name"])
def test_meta_rewards_and_advantages_match_the_golden_file(case: dict[str, Any], rules: str) -> None:
    expected, rows = case["meta"][rules], case["rows"]
    found = [
        reward
        for name, episode_return in case["episode_reward"].items()
        for reward in RULES[rules]([turn_of(row) for row in rows if row["traj"] == name], episode_return)
    ]
    assert [reward.tag for reward in found] == expected["tag"]
    assert_close(double([reward.reward for reward in found]), expected["reward"], FILE["tolerance_abs"])
    groups = list(dict.fromkeys(row["group"] for row in rows))
    group_index = torch.tensor([groups.index(row["group"]) for row in rows])
    scores = double(case["score"])
    assert_close(grpo(scores, group_index), case["A_traj"]["rows_std1"], FILE["tolerance_abs"])
    for weight in (1.0, 0.5):
        actual = rlvmr(scores, double(expected["reward"]), expected["tag"], group_index, weight=weight)
        assert_close(actual, expected[f"A_released_w{weight}"], FILE["tolerance_abs"])
