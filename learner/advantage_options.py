"""What `[learner.reward]` and `[learner.advantage]` choose."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from learner.advantages.gigpo import Gigpo
from learner.advantages.meta_rewards import RULE_SETS, RuleSet, appendix
from learner.advantages.over_turns import grpo_over_turns
from learner.advantages.rlvmr import Rlvmr, RlvmrOptions
from learner.advantages.shaping import OverlongOptions, RewardOptions
from learner.advantages.turn_inputs import TurnAdvantage
from learner.completion_text import completion_text
from learner.config import LearnConfig
from learner.method_config import AdvantageConfig
from longturn.reasoning_tags import PARSERS

_DAPO_SOFT_SHARE = 5


def reward_options(config: LearnConfig) -> RewardOptions:
    """What is taken off an episode's return."""
    reward = config.reward
    overlong = None
    if reward.overlong_penalty > 0 and reward.overlong_max_tokens is not None:
        overlong = OverlongOptions(
            scale=reward.overlong_penalty,
            max_tokens=reward.overlong_max_tokens,
            soft_tokens=reward.overlong_soft_tokens or max(1, reward.overlong_max_tokens // _DAPO_SOFT_SHARE),
        )
    return RewardOptions(
        invalid_action_penalty=reward.invalid_action_penalty,
        format_penalty=reward.format_penalty,
        overlong=overlong,
    )


def turn_estimator(config: LearnConfig, tokenizer_folder: Path | None = None) -> TurnAdvantage | None:
    """The estimator that tells turns apart; None if the chosen one does not."""
    advantage = config.advantage
    if advantage.estimator == "grpo_over_turns":
        return grpo_over_turns
    if advantage.estimator == "gigpo":
        return Gigpo(
            omega=advantage.gigpo_omega,
            discount=advantage.gigpo_discount,
            divide_by_std=bool(advantage.divide_by_std),
            episode_over_turns=advantage.gigpo_episode_over_turns,
            anchor=advantage.gigpo_anchor,
        )
    if advantage.estimator == "rlvmr":
        return _rlvmr(advantage, tokenizer_folder or config.model.path)
    return None


def _rlvmr(advantage: AdvantageConfig, tokenizer_folder: Path) -> Rlvmr:
    rules: RuleSet = RULE_SETS[advantage.rlvmr_rules]
    if advantage.rlvmr_rules == "appendix":
        rules = partial(appendix, discount=advantage.rlvmr_planning_discount)
    return Rlvmr(
        text_of=completion_text(tokenizer_folder),
        rules=rules,
        parser=PARSERS[advantage.rlvmr_parser],
        options=RlvmrOptions(
            weight=advantage.rlvmr_weight,
            alpha=advantage.rlvmr_alpha,
            divide_by_std=advantage.divide_by_std is not False,
            tags_over_batch=advantage.rlvmr_tags_over_batch,
            meta_format_penalty=advantage.rlvmr_meta_format_penalty,
        ),
    )
