from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from learner.advantages.meta_rewards import RULE_SETS, MetaTurn, RuleSet, appendix, reward_tag
from learner.advantages.rlvmr import Rlvmr, RlvmrOptions, meta_advantages, rlvmr
from learner.advantages.shaping import RewardOptions
from learner.advantages.standardise import index_of, standardise
from learner.advantages.turn_inputs import TurnInputs
from learner.diagnostics.repetition import ActedTurn, rates, repetition_counts
from learner.layout import TokenLayout
from longturn.reasoning_tags import PARSERS, opening_tag
from longturn.records import EpisodeStatus, PolicySpan, Task, Trajectory, Turn
from tests.learner.math.golden_files import assert_close, double, golden
from tests.learner.math.layouts import layout_of

FILE = golden("rlvmr")
TOLERANCE = FILE["tolerance_abs"]
RULES: dict[str, RuleSet] = {**RULE_SETS, "appendix_gamma0.9": partial(appendix, discount=0.9)}
PENALTY = FILE["constants"]["format_penalty"]
CASES = pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["name"])


@pytest.mark.parametrize("parser", sorted(PARSERS))
@pytest.mark.parametrize("case", FILE["parse"], ids=lambda case: repr(case["output"][:40]))
def test_parsers_match_the_golden_file(case: dict[str, Any], parser: str) -> None:
    parsed, expected = PARSERS[parser](case["output"]), case[parser]
    assert (parsed.format_valid, parsed.action) == (expected["format_valid"], expected["action"])
    assert (parsed.action in case["admissible"]) is expected["available"]
    if parser == "strict":
        assert parsed.plan == expected["plan"]
    assert opening_tag(case["output"]) == case["reward_tag"]


def turn_of(row: dict[str, Any]) -> MetaTurn:
    return MetaTurn(
        output=row["output"],
        action=row["action"],
        format_valid=row["format_valid"],
        is_available=row["available"],
        state=row["state"],
        next_state=row["next_state"],
    )


def layout_of_case(case: dict[str, Any]) -> TokenLayout:
    names = list(case["episode_reward"])
    groups = [next(row["group"] for row in case["rows"] if row["traj"] == name) for name in names]
    lengths = [sum(row["traj"] == name for row in case["rows"]) for name in names]
    assert [row["traj"] for row in case["rows"]] == [n for n, k in zip(names, lengths, strict=True) for _ in range(k)]
    return layout_of([[[0]] * length for length in lengths], index_of(groups).tolist())


def meta_rewards(case: dict[str, Any], rules: str) -> tuple[list[str], list[float]]:
    found = [
        reward
        for name, episode_return in case["episode_reward"].items()
        for reward in RULES[rules]([turn_of(row) for row in case["rows"] if row["traj"] == name], episode_return)
    ]
    return [reward.tag for reward in found], [reward.reward for reward in found]


@pytest.mark.parametrize("rules", sorted(RULES))
@CASES
def test_meta_rewards_match_the_golden_file(case: dict[str, Any], rules: str) -> None:
    tags, rewards = meta_rewards(case, rules)
    assert tags == case["meta"][rules]["tag"]
    assert_close(double(rewards), case["meta"][rules]["reward"], TOLERANCE)
    if rules == "repaired":
        assert [reward_tag(turn_of(row)) for row in case["rows"]] == tags


@CASES
def test_outcome_advantages_match_the_golden_file(case: dict[str, Any]) -> None:
    layout, expected = layout_of_case(case), case["A_traj"]
    rows = double(case["score"])
    per_trajectory = double(list(case["episode_reward"].values()))
    for key, ddof in (("rows_std1", 1), ("rows_std0", 0)):
        assert_close(standardise(rows, layout.group_index_K, ddof=ddof), expected[key], TOLERANCE)
    assert_close(standardise(rows, layout.group_index_K, divide_by_std=False), expected["rows_mean"], TOLERANCE)
    for key, ddof in (("traj_std1", 1), ("traj_std0", 0)):
        actual = standardise(per_trajectory, layout.group_index_J, ddof=ddof)[layout.trajectory_index_K]
        assert_close(actual, expected[key], TOLERANCE)


@pytest.mark.parametrize("rules", sorted(RULES))
@CASES
def test_advantages_match_the_golden_file(case: dict[str, Any], rules: str) -> None:
    layout, expected = layout_of_case(case), case["meta"][rules]
    tags, rewards = meta_rewards(case, rules)
    returns, outcomes = double(list(case["episode_reward"].values())), double(case["score"])
    combine = partial(rlvmr, outcomes, returns, double(rewards), tags, layout)
    for key, options in (
        ("A_released_w1.0", RlvmrOptions()),
        ("A_released_w0.5", RlvmrOptions(weight=0.5)),
        ("A_released_mean_norm_w1.0", RlvmrOptions(divide_by_std=False)),
        *((f"A_paper_alpha{alpha}", RlvmrOptions(alpha=alpha)) for alpha in (0.0, 0.25, 0.5, 1.0)),
    ):
        assert_close(combine(options), expected[key], TOLERANCE)
    for key, options in (
        ("group_tag_std1", RlvmrOptions()),
        ("group_tag_std0", RlvmrOptions(alpha=0.5)),
        ("group_tag_mean", RlvmrOptions(divide_by_std=False)),
        ("batch_tag_std0", RlvmrOptions(alpha=0.5, tags_over_batch=True)),
    ):
        assert_close(meta_advantages(double(rewards), tags, layout, options), expected["A_meta"][key], TOLERANCE)


def trajectories_of(case: dict[str, Any]) -> list[Trajectory]:
    """The golden rows as the learner gets them: completion ids stand for characters."""
    trajectories = []
    for name, episode_return in case["episode_reward"].items():
        rows = [row for row in case["rows"] if row["traj"] == name]
        turns = tuple(
            Turn(
                prompt_ids=(0,),
                completion_ids=(*map(ord, row["output"]), 0),
                behavior_logprobs=(-1.0,) * len(row["output"]) + (0.0,),
                policy_spans=(PolicySpan(start=0, end=len(row["output"]) + 1, policy_version=0),),
                action=row["action"],
                observation=row["next_state"],
                action_valid=row["available"],
                format_valid=row["format_valid"],
                num_synthetic_tokens=1,
            )
            for row in rows
        )
        trajectories.append(
            Trajectory(
                task=Task(environment="e", task_id="t"),
                seed=0,
                initial_observation=rows[0]["state"],
                turns=turns,
                status=EpisodeStatus.TERMINATED,
                episode_return=episode_return,
                score=0.0,
                success=episode_return > 0,
            )
        )
    return trajectories


def text_of(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


@pytest.mark.parametrize("rules", ["repaired", "released"])
@CASES
def test_the_estimator_finds_the_golden_advantages_in_trajectories(case: dict[str, Any], rules: str) -> None:
    inputs = TurnInputs(
        trajectories=tuple(trajectories_of(case)),
        returns_J=double(list(case["episode_reward"].values())),
        layout=layout_of_case(case),
        reward=RewardOptions(format_penalty=PENALTY),
    )
    actual = Rlvmr(text_of=text_of, rules=RULES[rules])(inputs)
    assert_close(actual, case["meta"][rules]["A_released_w1.0"], TOLERANCE)


@CASES
def test_a_format_penalty_in_the_meta_reward_matches_the_golden_file(case: dict[str, Any]) -> None:
    expected = case["meta"]["repaired"]
    tags, rewards = meta_rewards(case, "repaired")
    penalised = double([r - PENALTY * (not row["format_valid"]) for r, row in zip(rewards, case["rows"], strict=True)])
    assert_close(penalised, expected["reward_plus_format"], TOLERANCE)
    layout = layout_of_case(case)
    meta = meta_advantages(penalised, tags, layout, RlvmrOptions(alpha=0.0))
    assert_close(meta, expected["A_meta_plus_format_group_tag_std0"], TOLERANCE)
    options = RlvmrOptions(alpha=0.0, meta_format_penalty=PENALTY)
    inputs = TurnInputs(
        trajectories=tuple(trajectories_of(case)),
        returns_J=torch.zeros(layout.num_trajectories, dtype=torch.float64),
        layout=layout,
    )
    assert_close(Rlvmr(text_of=text_of, options=options)(inputs), meta.tolist(), TOLERANCE)


@CASES
def test_counts_of_vain_actions_match_the_golden_file(case: dict[str, Any]) -> None:
    pooled = Counter[str]()
    for name in case["episode_reward"]:
        turns = [
            ActedTurn(
                action=row["action"],
                is_available=row["available"],
                format_valid=row["format_valid"],
                state=row["state"],
                next_state=row["next_state"],
            )
            for row in case["rows"]
            if row["traj"] == name
        ]
        counts = repetition_counts(turns)
        assert dict(counts) == case["counts"][name]
        pooled.update(counts)
    assert dict(pooled) == case["counts_pooled"]
    found = rates(pooled)
    assert set(found) == set(case["rates_pooled"])
    for key, rate in case["rates_pooled"].items():
        assert_close(found[key], rate, TOLERANCE)
