"""Every method by its name: known names, refused combinations, and one real update each."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from learner.advantages import GROUP_ADVANTAGES, VALUE_ADVANTAGES
from learner.batch import tensors_of, tokens_of_groups
from learner.config import LearnConfig
from learner.entropy_state import entropy_step, remember_entropy
from learner.filter_options import group_filter
from learner.filters.loss_scaling import LOSS_SCALINGS
from learner.losses.aggregation import AGGREGATIONS
from learner.losses.kl import KL_ESTIMATORS
from learner.losses.off_policy import CORRECTIONS
from learner.method_checks import VALUE_ESTIMATORS
from learner.method_config import (
    AdvantageConfig,
    OffPolicyConfig,
    PpoConfig,
    ReferenceConfig,
    SnrConfig,
)
from learner.model import PolicyModel
from learner.options import history_options, update_options
from learner.reference import load_reference
from learner.state import TrainerState
from learner.step_terms import StepContext, step_terms
from learner.update import apply_update, score_rows, select_groups
from longturn.config import Config
from longturn.errors import ConfigError
from tests.learner.batches import batch_of

Changes = dict[str, dict[str, Any]]


def names(table: type[Config], field: str) -> set[str]:
    annotation = table.model_fields[field].annotation
    options = get_args(annotation)
    return {name for option in options for name in (get_args(option) or (option,)) if isinstance(name, str)}


def test_the_settings_name_every_method_that_there_is() -> None:
    turn_estimators = {"grpo_over_turns", "gigpo", "rlvmr"}
    assert names(AdvantageConfig, "estimator") == {*GROUP_ADVANTAGES, *turn_estimators, *VALUE_ADVANTAGES}
    assert set(VALUE_ESTIMATORS) == set(VALUE_ADVANTAGES)
    assert names(OffPolicyConfig, "mode") == set(CORRECTIONS)
    assert names(PpoConfig, "aggregation") == {*AGGREGATIONS, "constant"}
    assert names(ReferenceConfig, "estimator") == set(KL_ESTIMATORS)
    assert names(SnrConfig, "loss_scaling") == set(LOSS_SCALINGS)
    for name in names(SnrConfig, "filter"):
        assert group_filter(LearnConfig.model_validate({"snr": {"filter": name}})).select([]).is_empty


TURNLESS = {"turn_weight": 0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": {"group_size": 1}}, "one member has no variance"),
        ({"batch": {"group_size": 1}, "snr": {"filter": "top_k"}}, "one member has no variance"),
        (
            {"batch": {"group_size": 1}, "snr": {"filter": "none"}, "diagnostics": {"gradients_every": 2}},
            "diagnostics.gradients_every sorts groups",
        ),
        ({"snr": {"soft_reweight": True}, "advantage": {"estimator": "dr_grpo"}}, "set advantage.estimator = grpo"),
        ({"snr": {"num_groups": 3}}, "snr.filter = top_k only"),
        ({"advantage": {"estimator": "gigpo"}}, "set advantage.turn_weight = 0"),
        ({"advantage": {"estimator": "rlvmr"}}, "set advantage.turn_weight = 0"),
        (
            {"batch": {"group_size": 1}, "snr": {"filter": "none"}, "advantage": {"estimator": "rloo"}},
            "compares members",
        ),
        ({"reward": {"overlong_penalty": 1.0}}, "needs reward.overlong_max_tokens"),
        ({"reward": {"overlong_max_tokens": 10, "overlong_soft_tokens": 11}}, "must not exceed"),
        ({"off_policy": {"mode": "none"}}, "accept_bias"),
        ({"off_policy": {"mode": "log_linear", "veto": 1e-4}}, "off_policy.veto looks at logprobs"),
        ({"off_policy": {"mode": "log_linear"}, "reference": {"kl": "reward"}}, "reference.kl = reward looks at"),
        ({"off_policy": {"mode": "log_linear"}, "entropy_control": {"method": "clip_cov"}}, "clip_cov looks at"),
        (
            {
                "off_policy": {"mode": "log_linear"},
                "ppo": {"loss": "gspo", "aggregation": "seq_mean_token_mean"},
            },
            "gspo looks at",
        ),
        ({"ppo": {"loss": "gspo"}}, "set ppo.aggregation = seq_mean_token_mean"),
        ({"ppo": {"loss": "gspo", "aggregation": "seq_mean_token_mean", "dual_clip": 3.0}}, "ppo.dual_clip"),
        ({"ppo": {"aggregation_constant": 9.0}}, "ppo.aggregation = constant only"),
        ({"reference": {"kl": "loss", "estimator": "k1"}}, "zero expected gradient as a loss: use k2 or k3"),
        ({"reference": {"kl": "loss", "estimator": "abs"}}, "use k2 or k3"),
        ({"entropy_control": {"method": "turn_capped_bonus"}}, "set epo.enabled = false"),
        ({"entropy_control": {"method": "adaptive_coefficient"}}, "set epo.enabled = false"),
        ({"entropy_control": {"method": "kl_cov"}, "ppo": {"dual_clip": 3.0}}, "ppo.dual_clip"),
        ({"entropy_control": {"cov_low": 5.0}}, "cov_low must lie below"),
        ({"epo": {"kappa_low": 2.0}}, "kappa_low must lie below"),
        ({"epo": {"history_scope": "turn_released"}}, "set play.max_turns"),
        ({"advantage": {"estimator": "grop"}}, "'grpo', 'dr_grpo', 'rloo', 'reinforce', 'grpo_over_turns', 'gigpo'"),
        ({"snr": {"filter": "topk"}}, "'top_k', 'min_p', 'std_linear', 'std_softmax'"),
        ({"entropy_control": {"method": "clipcov"}}, "'entropy_advantage', 'clip_cov', 'kl_cov', 'top_entropy'"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(changes: Changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnConfig.model_validate(changes)


SCORED: dict[str, Changes] = {
    "dr_grpo": {
        "advantage": {"estimator": "dr_grpo"},
        "ppo": {"aggregation": "constant"},
    },
    "rloo": {"advantage": {"estimator": "rloo"}},
    "reinforce": {"advantage": {"estimator": "reinforce"}},
    "grpo_over_turns": {"advantage": {"estimator": "grpo_over_turns"}},
    "gigpo": {"advantage": {"estimator": "gigpo", **TURNLESS}},
    "gigpo_released": {
        "advantage": {
            "estimator": "gigpo",
            "divide_by_std": True,
            "gigpo_episode_over_turns": True,
            **TURNLESS,
        }
    },
    "rlvmr": {"advantage": {"estimator": "rlvmr", **TURNLESS}},
    "rlvmr_paper": {
        "advantage": {
            "estimator": "rlvmr",
            "rlvmr_rules": "appendix",
            "rlvmr_alpha": 0.5,
            "rlvmr_parser": "lenient",
            "rlvmr_tags_over_batch": True,
            "rlvmr_planning_discount": 0.9,
            **TURNLESS,
        }
    },
    "overlong": {"reward": {"overlong_penalty": 1.0, "overlong_max_tokens": 14}},
    "clip_higher": {"ppo": {"clip_high": 0.28}},
    "dual_clip": {"ppo": {"dual_clip": 3.0}},
    "gspo": {"ppo": {"loss": "gspo", "aggregation": "seq_mean_token_mean"}},
    "gspo_to_the_sampler": {
        "ppo": {"loss": "gspo", "aggregation": "seq_mean_token_mean"},
        "off_policy": {"mode": "behaviour_ratio"},
    },
    **{f"off_policy_{mode}": {"off_policy": {"mode": mode, "accept_bias": True}} for mode in sorted(CORRECTIONS)},
    "off_policy_geometric_rejection": {"off_policy": {"mode": "geometric_rejection", "lower": 0.95}},
    "veto": {"off_policy": {"veto": 0.6}},
    "kl_k2": {"reference": {"kl": "loss"}},
    "kl_k3": {"reference": {"kl": "loss", "estimator": "k3"}},
    "kl_in_reward": {"reference": {"kl": "reward"}},
    **{f"aggregation_{kind}": {"ppo": {"aggregation": kind}} for kind in sorted(AGGREGATIONS)},
    "epo_base": {"epo": {"smooth_coefficient": 0.0}},
    "epo_without_dynamic_weight": {"epo": {"dynamic_weight": False}},
    "epo_decay_turns": {"epo": {"decay": "turns"}},
    "epo_decay_steps": {"epo": {"decay": "steps"}},
    "epo_indicator": {"epo": {"form": "indicator", "kappa_high": 1.01}},
    "epo_sliding": {"epo": {"history": "sliding", "history_window": 1}},
    "epo_ema": {"epo": {"history": "ema"}},
    "epo_per_turn": {"epo": {"history_scope": "turn", "kappa_high": 1.01}},
    "epo_released": {
        "epo": {
            "history_scope": "turn_released",
            "form": "indicator",
            "weight_schedule": "released",
            "average": "token_mean",
        },
        "play": {"max_turns": 6},
    },
    "epo_active_corridor": {"epo": {"smooth_coefficient": 1.0, "alpha": 1.0, "kappa_high": 1.01}},
    "epo_turn_mean": {"epo": {"average": "turn_mean"}},
    "entropy_advantage": {"entropy_control": {"method": "entropy_advantage"}},
    "clip_cov": {"entropy_control": {"method": "clip_cov", "cov_low": 0.0, "cov_share": 0.1}},
    "kl_cov": {"entropy_control": {"method": "kl_cov", "cov_share": 0.1}, "off_policy": {"mode": "behaviour_ratio"}},
    "top_entropy": {"entropy_control": {"method": "top_entropy"}},
    "adaptive_coefficient": {
        "entropy_control": {"method": "adaptive_coefficient", "target_entropy": 9.0, "coefficient_step": 1.0},
        "epo": {"enabled": False},
    },
    "turn_capped_bonus": {"entropy_control": {"method": "turn_capped_bonus"}, "epo": {"enabled": False}},
    **{f"filter_{name}": {"snr": {"filter": name}} for name in ("none", "fraction", "top_k", "min_p", "std_softmax")},
    "filter_std_linear": {"snr": {"filter": "std_linear", "smallest_first": True}},
    "filter_has_variance": {"snr": {"filter": "has_variance"}},
    "filter_streaming": {"snr": {"filter": "streaming"}},
    "loss_scaling_linear": {"snr": {"loss_scaling": "linear"}},
    "loss_scaling_sqrt": {"snr": {"loss_scaling": "sqrt"}},
    "soft_reweight": {"snr": {"filter": "none", "soft_reweight": True}},
}


class Steps:
    """Training steps on one batch, without ledger or engine; the loop's own order of calls."""

    def __init__(self, model_dir: Path, changes: Changes, *, scores_first: bool = False) -> None:
        self.scores_first = scores_first
        # A corridor that is left, and a coefficient that shows in float32.
        epo = {"kappa_high": 1.001, "entropy_coefficient": 0.1, **changes.get("epo", {})}
        self.config = LearnConfig.model_validate({"model": {"path": model_dir}, **changes, "epo": epo})
        self.model = PolicyModel.load(model_dir)
        self.options = update_options(self.config)
        self.state = TrainerState.fresh("run", history_options(self.config))
        self.filter = group_filter(self.config, self.state.running_scores)
        self.optimizer = torch.optim.AdamW(self.model.module.parameters(), lr=1e-4)
        self.batch = batch_of(reward=self.options.reward)
        scores = score_rows(self.model, tensors_of(self.batch), temperature=1.0)
        noise = torch.randn(scores.logprobs_N.shape, generator=torch.Generator().manual_seed(2))
        self.behavior_logprobs = (scores.logprobs_N + 0.3 * noise).clamp(max=0.0)

    def run(self) -> tuple[float, float]:
        """Loss and gradient norm of one step."""
        options, state = self.options, self.state
        pool = tensors_of(self.batch)
        selection = select_groups(self.batch, self.filter, "return")
        kept = tensors_of(self.batch.restricted_to(selection.kept))
        kept_tokens = tokens_of_groups(pool.layout, selection.kept)
        kept.behavior_logprobs_N[:] = self.behavior_logprobs[kept_tokens]
        scores = score_rows(self.model, pool, temperature=1.0)
        proximal = scores if options.scores_first or self.scores_first else None
        max_turns = self.config.play.max_turns
        step = entropy_step(state, options, pool, proximal, total_steps=4, max_turns=max_turns)
        context = StepContext(
            kept_ratio=selection.kept_ratio,
            epo_step=step,
            reference_logprobs_N=kept.behavior_logprobs_N if options.reads_reference else None,
            lags_N=torch.full((kept.num_tokens,), state.training_step) if proximal is None else None,
        )
        chosen = proximal and proximal.take(kept_tokens)
        terms = step_terms(kept, chosen, options, batch=state.training_step, context=context)
        result = apply_update(
            self.model, self.optimizer, kept, terms, options, training_step=state.training_step, epo_step=step
        )
        assert result.is_applied
        state.training_step += 1
        remember_entropy(state, options, pool, scores, max_turns=max_turns)
        return result.loss, result.grad_norm


@pytest.fixture(scope="module")
def plain(model_dir: Path) -> list[tuple[float, float]]:
    """Loss and norm of three steps with every method at its default."""
    steps = Steps(model_dir, {})
    return [steps.run() for _ in range(3)]


SAME_AS_DEFAULT = {
    # The defaults' own names, and clips that no ratio reaches when a batch takes one step.
    "off_policy_decoupled",
    "aggregation_token_mean",
    # All turns are of one length.
    "aggregation_turn_mean",
    "clip_higher",
    "dual_clip",
    # Two groups of equal variance and one without: these rules keep the same two.
    "filter_min_p",
    "filter_std_linear",
    "filter_has_variance",
    "filter_streaming",
}


@pytest.mark.parametrize("name", sorted(SCORED))
def test_every_method_makes_its_own_finite_updates(
    name: str, model_dir: Path, plain: list[tuple[float, float]]
) -> None:
    steps = Steps(model_dir, SCORED[name])
    found = [steps.run() for _ in range(3)]
    assert all(math.isfinite(number) for pair in found for number in pair)
    assert any(norm > 0 for _, norm in found)
    assert (found == plain) is (name in SAME_AS_DEFAULT)


def test_scoring_the_batch_before_its_one_step_changes_nothing(model_dir: Path) -> None:
    once, twice = Steps(model_dir, {}), Steps(model_dir, {}, scores_first=True)
    for _ in range(3):
        assert once.run() == pytest.approx(twice.run(), rel=1e-5)
    for after_one, after_two in zip(once.model.module.parameters(), twice.model.module.parameters(), strict=True):
        torch.testing.assert_close(after_one, after_two, rtol=0, atol=1e-6)


def test_a_reference_that_reads_other_ids_is_refused(model_dir: Path, tmp_path: Path) -> None:
    policy = PolicyModel.load(model_dir)
    other = tmp_path / "other"
    shutil.copytree(model_dir, other)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8") + " ", encoding="utf-8")
    with pytest.raises(ConfigError, match="another vocabulary or tokenizer"):
        load_reference(other, policy, device="cpu", offload=False)


@pytest.mark.parametrize("offload", [False, True])
def test_the_reference_gives_the_policys_own_logprobs_before_training(model_dir: Path, *, offload: bool) -> None:
    policy, kept = PolicyModel.load(model_dir), tensors_of(batch_of())
    reference = load_reference(model_dir, policy, device="cpu", offload=offload)
    expected = score_rows(policy, kept, temperature=0.7).logprobs_N
    assert torch.equal(reference.logprobs(kept, temperature=0.7), expected)
