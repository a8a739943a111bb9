"""Estimators, penalties and shapers on trajectories, as an update gets them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from learner.advantages.gigpo import Gigpo
from learner.advantages.kl_in_reward import returns_with_kl
from learner.advantages.shaping import OverlongOptions, RewardOptions, trajectory_return, turn_penalty
from learner.advantages.standardise import index_of
from learner.advantages.turn_inputs import TurnInputs
from learner.batch import tensors_of
from learner.completion_text import completion_text
from learner.filters.loss_scaling import sqrt
from learner.losses.kl import KlOptions
from learner.losses.off_policy import OffPolicyOptions
from learner.losses.ppo import PpoOptions
from learner.losses.step_loss import LossOptions
from learner.schedule import RateSchedule
from learner.step_terms import Scores, StepContext, step_terms
from learner.update_options import UpdateOptions
from longturn.errors import ConfigError
from longturn.records import EpisodeStatus, PolicySpan, Task, Trajectory, Turn
from tests.learner.batches import batch_of
from tests.learner.math.golden_files import assert_close, double, golden
from tests.learner.math.layouts import layout_of

GIGPO = golden("advantages_gigpo")


def turn(*, observation: str = "", reward: float = 0.0, **changes: Any) -> Turn:
    values: dict[str, Any] = {
        "prompt_ids": (1,),
        "completion_ids": (2, 3, 4),
        "behavior_logprobs": (-1.0, -1.0, -1.0),
        "policy_spans": (PolicySpan(start=0, end=3, policy_version=0),),
        "action": "go",
        "observation": observation,
        "action_valid": True,
        "reward": reward,
    }
    return Turn(**(values | changes))


def trajectory(turns: list[Turn], *, initial_observation: str = "", **changes: Any) -> Trajectory:
    values: dict[str, Any] = {
        "task": Task(environment="maze", task_id="one"),
        "seed": 0,
        "initial_observation": initial_observation,
        "turns": tuple(turns),
        "status": EpisodeStatus.TERMINATED,
        "episode_return": sum(turn.reward for turn in turns),
        "score": 0.0,
        "success": False,
    }
    return Trajectory(**(values | changes))


def golden_trajectories() -> list[Trajectory]:
    found = []
    for name in dict.fromkeys(GIGPO["traj"]):
        index = [i for i, other in enumerate(GIGPO["traj"]) if other == name]
        observations = [GIGPO["anchor_obs"][i] for i in index]
        after = [*observations[1:], "the end"]
        rewards = [GIGPO["step_reward"][i] for i in index]
        turns = [turn(observation=seen, reward=reward) for seen, reward in zip(after, rewards, strict=True)]
        found.append(trajectory(turns, initial_observation=observations[0]))
    return found


def inputs_of(trajectories: list[Trajectory], reward: RewardOptions | None = None) -> TurnInputs:
    options = reward or RewardOptions()
    return TurnInputs(
        trajectories=tuple(trajectories),
        returns_J=double([trajectory_return(played, options) for played in trajectories]),
        layout=layout_of([[[0]] * len(played.turns) for played in trajectories]),
        reward=options,
    )


@pytest.mark.parametrize("divide_by_std", [False, True])
@pytest.mark.parametrize("episode_over_turns", [False, True])
def test_gigpo_finds_the_golden_advantages_in_trajectories(*, divide_by_std: bool, episode_over_turns: bool) -> None:
    estimator = Gigpo(
        omega=GIGPO["omega"],
        discount=GIGPO["gamma"],
        divide_by_std=divide_by_std,
        episode_over_turns=episode_over_turns,
    )
    mode = "mean_std_norm" if divide_by_std else "mean_norm"
    scope = "all_rows" if episode_over_turns else "trajectory_dedup"
    assert_close(estimator(inputs_of(golden_trajectories())), GIGPO[f"{mode}_{scope}"]["A"], GIGPO["tolerance_abs"])


def test_gigpo_by_state_tells_places_apart_that_look_alike() -> None:
    first = trajectory(
        [turn(observation="dark", state_hash=b"1"), turn(observation="dark", state_hash=b"2", reward=1.0)],
        initial_observation="dark",
        initial_state_hash=b"0",
    )
    turns = (replace(first.turns[0], state_hash=b"9"), replace(first.turns[1], reward=0.0))
    second = replace(first, turns=turns, episode_return=0.0)
    by_text = Gigpo(omega=1.0)(inputs_of([first, second]))
    by_state = Gigpo(omega=1.0, anchor="state")(inputs_of([first, second]))
    # By text all four turns share one anchor, with returns 0.95, 1, 0 and 0; by state only the first turns do.
    assert by_text.tolist() == pytest.approx([0.5 + 0.4625, 0.5 + 0.5125, -0.5 - 0.4875, -0.5 - 0.4875])
    assert by_state.tolist() == pytest.approx([0.5 + 0.475, 0.5, -0.5 - 0.475, -0.5])


def test_gigpo_by_state_needs_state_hashes() -> None:
    with pytest.raises(ConfigError, match="maze gives no state hashes; set it to observation"):
        Gigpo(anchor="state")(inputs_of([trajectory([turn()])]))


def test_a_turn_pays_its_own_penalties() -> None:
    options = RewardOptions(invalid_action_penalty=0.25, format_penalty=0.5)
    bad = turn(action_valid=False, format_valid=False)
    assert turn_penalty(bad, options) == 0.75
    assert turn_penalty(turn(), options) == 0.0
    played = trajectory([bad, turn(reward=1.0)])
    assert trajectory_return(played, options) == 0.25
    penalised = Gigpo(discount=1.0)(inputs_of([played, trajectory([turn(), turn(reward=1.0)])], options))
    assert penalised[0] < penalised[2]


@pytest.mark.parametrize(("num_turns", "penalty"), [(2, 0.0), (3, 0.5), (4, 2.0), (9, 2.0)])
def test_long_completions_pay_dapos_ramp(num_turns: int, penalty: float) -> None:
    options = RewardOptions(overlong=OverlongOptions(scale=2.0, max_tokens=12, soft_tokens=4))
    assert trajectory_return(trajectory([turn(reward=1.0)] * num_turns), options) == num_turns - penalty


def test_what_the_actor_added_is_no_part_of_the_length() -> None:
    options = RewardOptions(overlong=OverlongOptions(scale=1.0, max_tokens=4, soft_tokens=1))
    assert trajectory_return(trajectory([turn(num_synthetic_tokens=1)] * 2), options) == -1.0
    assert trajectory_return(trajectory([turn(num_synthetic_tokens=2)] * 2), options) == 0.0


@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "k3", "k3_clamped"])
def test_a_kl_in_the_reward_is_taken_off_per_token(kind: str) -> None:
    layout = layout_of([[[1, 1]], [[1]]])
    logprobs, reference = double([-1.0, -2.0, -0.5]), double([-1.5, -2.0, -0.5])
    options = KlOptions(coefficient=2.0, kind=kind, in_reward=True)
    found = returns_with_kl(double([1.0, 1.0]), logprobs, reference, layout, options)
    assert found[0] < 1.0
    assert found[1] == 1.0
    if kind in ("k1", "abs"):
        assert found[0] == 0.0


def options(**changes: Any) -> UpdateOptions:
    values: dict[str, Any] = {
        "loss": LossOptions(ppo=PpoOptions()),
        "off_policy": OffPolicyOptions(),
        "aggregation": "token_mean",
        "estimator": "grpo",
        "turn_weight": 0.0,
        "temperature": 1.0,
        "max_grad_norm": 1.0,
        "schedule": RateSchedule(kind="constant", learning_rate=1.0, warmup_steps=0, min_ratio=0.1, total_steps=9),
    }
    return UpdateOptions(**(values | changes))


def advantages_of(chosen: UpdateOptions, context: StepContext | None = None) -> Tensor:
    kept = tensors_of(batch_of())
    scores = Scores(logprobs_N=kept.behavior_logprobs_N, entropies_N=torch.ones(kept.num_tokens))
    terms = step_terms(kept, scores, chosen, batch=0, context=context or StepContext())
    return terms.token_terms.advantages_N


def test_loss_scaling_multiplies_advantages_only() -> None:
    plain = advantages_of(options())
    scaled = advantages_of(options(loss_scaling=sqrt), StepContext(kept_ratio=0.25))
    torch.testing.assert_close(scaled, 0.5 * plain)


def test_soft_reweighting_silences_groups_without_spread_and_leaves_the_widest_alone() -> None:
    plain, soft = advantages_of(options()), advantages_of(options(soft_reweight=True))
    torch.testing.assert_close(soft, plain, atol=1e-5, rtol=1e-5)
    kept = tensors_of(batch_of())
    kept.returns_J[4:8] *= 0.5
    scores = Scores(logprobs_N=kept.behavior_logprobs_N, entropies_N=torch.ones(kept.num_tokens))
    token_groups = kept.layout.group_index_J[kept.layout.trajectory_index_N]
    found = step_terms(kept, scores, options(soft_reweight=True), batch=0).token_terms.advantages_N
    torch.testing.assert_close(found[token_groups == 1], 0.5 * plain[token_groups == 1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[token_groups == 2], plain[token_groups == 2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"reward_kl": KlOptions(in_reward=True)}, {"loss": LossOptions(ppo=PpoOptions(), kl=KlOptions())}],
)
def test_a_reference_kl_without_a_reference_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs reference_logprobs_N"):
        advantages_of(options(**changes))


def test_equal_keys_have_equal_numbers_in_order_of_appearance() -> None:
    assert index_of(["b", "a", "b", ("c", 1)]).tolist() == [0, 1, 0, 2]


def test_completions_are_read_with_their_special_tokens(model_dir: Path, tmp_path: Path) -> None:
    assert completion_text(model_dir)((3, 0, 7)) == "w3 w0 w7"
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        completion_text(tmp_path)
