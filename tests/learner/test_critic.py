"""PPO with a critic: rewards on tokens, both trunks, the warm-up, checkpoints, and whole runs."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learner.advantages.shaping import RewardOptions
from learner.batch import BatchTensors, tensors_of
from learner.checkpoint import restore_critic, save_checkpoint
from learner.checkpoint_files import CheckpointError, find_checkpoints
from learner.config import LearnConfig
from learner.critic.estimate import rewards_on_tokens, value_terms
from learner.critic.interface import NO_CRITIC, Critic
from learner.critic_options import make_critic, value_options
from learner.model import PolicyModel
from learner.options import pass_options, update_options
from learner.state import TrainerState
from learner.step_terms import StepContext, StepTerms, step_terms
from learner.update import UpdateResult, apply_update, score_rows
from learner.update_options import UpdateOptions
from longturn.records import Task, Trajectory, Turn
from tests.learner.batches import batch_of
from tests.support.learner_run import audited, rows_of, small_config, train_with_pool

TRUNKS = ("own", "shared")


def config_of(model_dir: Path, *, estimator: str = "gae", **critic: Any) -> LearnConfig:
    return LearnConfig.model_validate(
        {
            "model": {"path": model_dir},
            "advantage": {"estimator": estimator, "turn_weight": 0.0},
            "critic": {"learning_rate": 1e-2, **critic},
            "epo": {"enabled": False},
            "optimizer": {"max_grad_norm": 1e9},
        }
    )


class Trainer:
    """A policy and its critic on one batch, in the loop's own order of calls."""

    def __init__(self, config: LearnConfig) -> None:
        passes = pass_options(config)
        self.model = PolicyModel.load(config.model.path, passes=passes)
        self.critic: Critic = make_critic(config, self.model, passes=passes)
        self.options: UpdateOptions = update_options(config)
        self.optimizer = torch.optim.AdamW(self.model.module.parameters(), lr=1e-3)
        self.kept: BatchTensors = tensors_of(batch_of().restricted_to([1, 2]))
        self.step = 0

    def terms(self) -> StepTerms:
        values = self.critic.values(self.kept, on_row=lambda: None)
        proximal = score_rows(self.model, self.kept, temperature=1.0)
        return step_terms(self.kept, proximal, self.options, batch=0, context=StepContext(values=values))

    def run(self, terms: StepTerms | None = None) -> UpdateResult:
        result = apply_update(
            self.model,
            self.optimizer,
            self.kept,
            terms or self.terms(),
            self.options,
            training_step=self.step,
            epo_step=None,
            critic=self.critic,
        )
        self.step += 1
        return result

    def measure(self, name: str) -> float:
        value = self.critic.measures[f"learner/critic/{name}"]
        assert value is not None
        return value


def weights(model: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.module.state_dict().items()}


def same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(before[name], after[name]) for name in before)


def played(reward: float = 0.0, *, action_valid: bool = True) -> Turn:
    return Turn(action="go", observation="a room", reward=reward, action_valid=action_valid)


def trajectory_of(*turns: Turn) -> Trajectory:
    (template, *_) = batch_of().members
    return replace(template.trajectory, turns=turns, task=Task(environment="e", task_id="t"), identity=None)


def test_rewards_fall_on_the_last_token_of_their_turn_and_the_rest_on_the_last_of_all() -> None:
    trajectory = trajectory_of(played(1.0), played(2.0, action_valid=False), played(4.0))
    rewards = rewards_on_tokens(
        trajectory, [2, 1, 2], shaped_return=6.0, reward=RewardOptions(invalid_action_penalty=0.5)
    )
    # 1 + 1.5 + 4 is 6.5: the shaped return holds half a point less, such as a soft limit on length.
    assert rewards == [0.0, 1.0, 1.5, 0.0, 3.5]


def test_a_turn_without_trained_tokens_pays_the_token_before_it_or_nobody() -> None:
    trajectory = trajectory_of(played(8.0), played(1.0), played(2.0))
    assert rewards_on_tokens(trajectory, [0, 2, 0], shaped_return=11.0, reward=RewardOptions()) == [0.0, 3.0]


def test_only_a_cut_episode_is_bootstrapped_and_only_if_asked_for(model_dir: Path) -> None:
    trainer = Trainer(config_of(model_dir, whiten=False))
    values = trainer.critic.values(trainer.kept, on_row=lambda: None)
    assert values is not None
    values.ends_J[:] = 10.0
    options = value_options(config_of(model_dir, whiten=False))
    assert options is not None
    everything = torch.ones(trainer.kept.num_tokens, dtype=torch.bool)

    def advantages(*, bootstrap: bool) -> torch.Tensor:
        chosen = replace(options, bootstrap_on_truncation=bootstrap)
        terms = value_terms(trainer.kept, values, chosen, reward=RewardOptions(), mask_N=everything)
        return terms.advantages_N

    # Values start at zero, so without whitening an advantage is what is still to come.
    won_N = trainer.kept.returns_J[trainer.kept.layout.trajectory_index_N]
    assert torch.equal(advantages(bootstrap=False), won_N)
    assert torch.equal(advantages(bootstrap=True), won_N + 10.0 * (won_N == 0))


def test_a_kl_in_the_reward_is_charged_token_by_token(model_dir: Path) -> None:
    trainer = Trainer(config_of(model_dir, whiten=False))
    values = trainer.critic.values(trainer.kept, on_row=lambda: None)
    options = value_options(config_of(model_dir, whiten=False))
    assert options is not None
    assert values is not None
    everything = torch.ones(trainer.kept.num_tokens, dtype=torch.bool)
    costs_N = torch.zeros(trainer.kept.num_tokens)
    costs_N[1] = 0.25
    plain = value_terms(trainer.kept, values, options, reward=RewardOptions(), mask_N=everything)
    charged = value_terms(
        trainer.kept, values, options, reward=RewardOptions(), mask_N=everything, token_costs_N=costs_N
    )
    difference = plain.advantages_N - charged.advantages_N
    assert difference[:3].tolist() == [0.25, 0.25, 0.0]
    assert not difference[3:].any()


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("estimator", ["gae", "turn_gae", "bi_level_gae"])
def test_the_critic_comes_to_explain_the_returns(model_dir: Path, trunk: str, estimator: str) -> None:
    trainer = Trainer(config_of(model_dir, trunk=trunk, estimator=estimator, value_clip=0))
    explained, losses = [], []
    # A head on a trunk that also moves for the policy takes longer.
    for _ in range(5 if trunk == "own" else 10):
        assert trainer.run().is_applied
        explained.append(trainer.measure("explained_variance"))
        losses.append(trainer.measure("value_loss"))
    assert explained[-1] > explained[0]
    assert losses[-1] < losses[0]


def test_an_own_trunk_leaves_the_policys_gradient_as_it_is(model_dir: Path) -> None:
    with_critic = Trainer(config_of(model_dir, trunk="own"))
    terms = with_critic.terms()
    without = Trainer(config_of(model_dir, trunk="own"))
    without.critic = NO_CRITIC
    assert with_critic.run(terms).grad_norm == without.run(terms).grad_norm
    assert same(weights(with_critic.model), weights(without.model))


def test_a_shared_trunk_gets_the_gradient_of_both_losses(model_dir: Path) -> None:
    trainer = Trainer(config_of(model_dir, trunk="shared", value_clip=0, coefficient=0.5))
    trainer.run()
    terms = trainer.terms()
    valued, policy_terms = terms.value_terms, terms.token_terms
    assert valued is not None
    module, head = copy.deepcopy(trainer.model.module), copy.deepcopy(trainer.critic._head)  # type: ignore[attr-defined]
    loss = torch.zeros(())
    for row, tokens in zip(trainer.kept.rows, trainer.kept.token_slices, strict=True):
        before = [position - 1 for position in row.positions]
        hidden = module.model(input_ids=torch.tensor([row.ids])).last_hidden_state[0][before]
        logprobs = torch.log_softmax(module.lm_head(hidden), dim=-1)
        chosen = logprobs[range(len(before)), [row.ids[position] for position in row.positions]]
        ratio = (chosen - policy_terms.anchor_logprobs_N[tokens]).exp()
        scale = policy_terms.policy_weights_N[tokens] * policy_terms.correction_weights_N[tokens]
        loss = loss - (scale * ratio * policy_terms.advantages_N[tokens]).sum()
        errors = head(hidden) - valued.targets_N[tokens]
        loss = loss + 0.5 * (valued.weights_N[tokens] * 0.5 * errors.square()).sum()
    loss.backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    result = trainer.run(terms)
    assert result.grad_norm == pytest.approx(expected.item(), rel=1e-4)
    assert result.loss == pytest.approx(loss.item(), abs=1e-5)


def test_an_own_trunks_gradient_is_that_of_finite_differences(model_dir: Path) -> None:
    trainer = Trainer(config_of(model_dir, trunk="own", value_clip=0, max_grad_norm=1e9))
    trainer.run()
    core: Any = trainer.critic._core  # type: ignore[attr-defined]
    core._module.double()
    terms = trainer.terms().value_terms
    assert terms is not None
    trainer.critic.begin(trainer.kept, terms, training_step=1, on_row=lambda: None)
    parameters = [parameter for parameter in core._module.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    steepest = [parameter.grad / norm for parameter in parameters]

    def loss_at(distance: float) -> float:
        with torch.no_grad():
            for parameter, direction in zip(parameters, steepest, strict=True):
                parameter.add_(direction, alpha=distance)
        trainer.critic.begin(trainer.kept, terms, training_step=1, on_row=lambda: None)
        with torch.no_grad():
            for parameter, direction in zip(parameters, steepest, strict=True):
                parameter.sub_(direction, alpha=distance)
        return trainer.measure("value_loss")

    # The model normalises in float32 whatever its weights are, so the distance must not be tiny.
    numeric = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3
    assert norm.item() == pytest.approx(numeric, rel=1e-2)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_the_policy_stays_as_it_is_while_the_critic_warms_up(model_dir: Path, trunk: str) -> None:
    trainer = Trainer(config_of(model_dir, trunk=trunk, warmup_steps=2))
    before = weights(trainer.model)
    expected = score_rows(trainer.model, trainer.kept, temperature=1.0)
    for _ in range(2):
        result = trainer.run()
        assert result.is_applied
        assert torch.equal(result.logprobs_N, expected.logprobs_N)
        assert trainer.measure("warms_up") == 1
    assert same(before, weights(trainer.model))
    assert trainer.measure("gradient_norm") > 0
    trainer.run()
    assert trainer.measure("warms_up") == 0
    assert not same(before, weights(trainer.model))


def test_several_updates_of_a_batch_stop_where_the_clip_holds_every_value(model_dir: Path) -> None:
    trainer = Trainer(config_of(model_dir, num_updates=4, value_clip=1e-6))
    trainer.run()
    assert trainer.measure("updates") == 4
    # The first update moves all values past the tiny clip; beyond it only those that moved away still pull.
    assert trainer.measure("gradient_norm") < 10
    free = Trainer(config_of(model_dir, num_updates=4, value_clip=0))
    free.run()
    assert free.measure("value_loss") < trainer.measure("value_loss")


@pytest.mark.parametrize("trunk", TRUNKS)
def test_numbers_that_are_not_finite_move_neither_policy_nor_critic(model_dir: Path, trunk: str) -> None:
    trainer = Trainer(config_of(model_dir, trunk=trunk))
    trainer.run()
    terms = trainer.terms()
    assert terms.value_terms is not None
    terms.value_terms.targets_N[2] = math.nan
    before, critic_before = weights(trainer.model), {k: v.clone() for k, v in trainer.critic.to_tensors().items()}
    assert not trainer.run(terms).is_applied
    assert same(before, weights(trainer.model))
    assert same(critic_before, trainer.critic.to_tensors())


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_checkpoint_brings_the_critic_back(tmp_path: Path, model_dir: Path, trunk: str) -> None:
    trainer = Trainer(config_of(model_dir, trunk=trunk))
    trainer.run()
    state = TrainerState(run_id="run", training_step=1, batches_consumed=1)
    save_checkpoint(
        tmp_path,
        state=state,
        model=trainer.model,
        optimizer=trainer.optimizer,
        num_batches=9,
        keep=2,
        critic=trainer.critic,
    )
    (found,) = find_checkpoints(tmp_path)
    again = Trainer(config_of(model_dir, trunk=trunk))
    restore_critic(found.path, again.critic)
    kept = trainer.critic.to_tensors()
    assert same(kept, again.critic.to_tensors())
    assert any(name.startswith("optimizer/") for name in kept)
    other = Trainer(config_of(model_dir, trunk="own" if trunk == "shared" else "shared"))
    with pytest.raises(CheckpointError, match=r"another critic's parameters; resume with the learner\.advantage"):
        restore_critic(found.path, other.critic)


def test_a_checkpoint_without_a_critic_is_refused_where_one_is_wanted(tmp_path: Path, model_dir: Path) -> None:
    trainer = Trainer(config_of(model_dir))
    state = TrainerState(run_id="run", training_step=1, batches_consumed=1)
    save_checkpoint(tmp_path, state=state, model=trainer.model, optimizer=trainer.optimizer, num_batches=9, keep=2)
    with pytest.raises(CheckpointError, match=r"critic\.safetensors cannot be read"):
        restore_critic(find_checkpoints(tmp_path)[0].path, trainer.critic)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trunk": "shared", "path": "x"}, "critic.trunk = own only"),
        ({"trunk": "shared", "num_updates": 2}, "critic.num_updates must be 1"),
        ({"warmup_steps": 24}, "critic.warmup_steps must lie below batch.num_batches, which is 24"),
    ],
)
def test_settings_of_a_critic_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnConfig.model_validate({"advantage": {"estimator": "gae"}, "critic": changes})
    # Without a critic they are not read.
    LearnConfig.model_validate({"critic": changes})


ALONE: dict[str, dict[str, object]] = {
    "batch": {"groups_per_step": 8, "group_size": 1, "num_batches": 4},
    "snr": {"filter": "none"},
    "advantage": {"estimator": "gae", "turn_weight": 0.0},
}


@pytest.mark.parametrize("trunk", TRUNKS)
def test_ppo_trains_single_episodes_and_resumes_to_the_same_weights(
    tmp_path: Path, model_dir: Path, task_path: Path, trunk: str
) -> None:
    critic = {"trunk": trunk, "warmup_steps": 1, "learning_rate": 1e-2}
    config = small_config(tmp_path / "run", model_dir, task_path, **ALONE, critic=critic)
    assert train_with_pool(config)[0] == "COMPLETED"
    rows, found = rows_of(config.run_dir), find_checkpoints(config.run_dir / "checkpoints")
    assert [row["learner/critic/warms_up"] for row in rows] == [1, 0, 0, 0]
    assert [row["learner/optimizer/learning_rate"] for row in rows] == [0.0, 1e-3, 1e-3, 1e-3]
    assert all(isinstance(row["learner/critic/explained_variance"], float) for row in rows)
    weights_of = [load_file(each.path / "model.safetensors") for each in found]
    assert same(weights_of[0], weights_of[1])
    assert not same(weights_of[1], weights_of[2])
    last_critic = load_file(found[-1].path / "trainer" / "critic.safetensors")
    assert found[2].training_step == 2
    train_with_pool(config, resume=str(found[2].path))
    newest = find_checkpoints(config.run_dir / "checkpoints")[-1]
    assert same(weights_of[-1], load_file(newest.path / "model.safetensors"))
    assert same(last_critic, load_file(newest.path / "trainer" / "critic.safetensors"))
    audited(config.run_dir)
