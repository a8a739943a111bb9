"""Options of the mathematics from the configuration; with its neighbours `*_options`, where both are known."""

from __future__ import annotations

import math
from pathlib import Path

from learner.advantage_options import reward_options, turn_estimator
from learner.batch import BatchOptions
from learner.config import LearnConfig
from learner.critic_options import value_options
from learner.entropy_options import (
    adaptive_options,
    advantage_shaper,
    anchor_kl,
    entropy_term,
    history_options,
    turn_scale,
)
from learner.filter_options import group_filter
from learner.filters.loss_scaling import LOSS_SCALINGS
from learner.losses import gspo
from learner.losses.kl import KlOptions
from learner.losses.off_policy import OffPolicyOptions
from learner.losses.ppo import PpoOptions
from learner.losses.step_loss import LossOptions
from learner.passes import PassOptions
from learner.ranks import ALONE, Ranks
from learner.schedule import RateSchedule
from learner.update_options import UpdateOptions

__all__ = ["batch_options", "group_filter", "history_options", "pass_options", "update_options"]

_CLIPS = {"ppo": (0.2, 0.28), "gspo": (gspo.CLIP_LOW, gspo.CLIP_HIGH)}


def update_options(config: LearnConfig, *, tokenizer_folder: Path | None = None) -> UpdateOptions:
    """Everything that shapes an update; texts are decoded by the tokenizer of the folder, or of model.path."""
    optimizer, ppo = config.optimizer, ppo_options(config)
    kl = kl_options(config)
    return UpdateOptions(
        loss=LossOptions(ppo=ppo, epo=entropy_term(config), kl=None if kl is None or kl.in_reward else kl),
        off_policy=OffPolicyOptions(
            mode=config.off_policy.mode,
            cap=config.off_policy.cap,
            over_cap=config.off_policy.over_cap,
            lower=config.off_policy.lower,
            upper=config.off_policy.upper,
            veto=config.off_policy.veto,
        ),
        aggregation=config.ppo.aggregation,
        aggregation_constant=aggregation_constant(config),
        estimator=config.advantage.estimator,
        turn_estimator=turn_estimator(config, tokenizer_folder),
        value=value_options(config),
        reward=reward_options(config),
        reward_kl=kl if kl is not None and kl.in_reward else None,
        turn_weight=config.advantage.turn_weight,
        loss_scaling=LOSS_SCALINGS[config.snr.loss_scaling],
        soft_reweight=config.snr.soft_reweight,
        shaper=advantage_shaper(config, ppo),
        anchor_kl=anchor_kl(config),
        has_sequence_ratio=config.ppo.loss == "gspo",
        turn_scale=turn_scale(config),
        adaptive=adaptive_options(config),
        temperature=config.play.temperature,
        max_grad_norm=optimizer.max_grad_norm,
        schedule=RateSchedule(
            kind=optimizer.schedule,
            learning_rate=optimizer.learning_rate,
            warmup_steps=optimizer.warmup_steps,
            min_ratio=optimizer.min_ratio,
            total_steps=config.batch.num_batches,
        ),
        seed=config.seed,
        permute_seed=config.seed if config.control.permute_advantages else None,
    )


def ppo_options(config: LearnConfig) -> PpoOptions:
    """The clip of the chosen policy loss; KL-Cov has none."""
    if config.entropy_control.method == "kl_cov":
        return PpoOptions(clip_low=1.0, clip_high=math.inf)
    low, high = _CLIPS[config.ppo.loss]
    return PpoOptions(
        clip_low=low if config.ppo.clip_low is None else config.ppo.clip_low,
        clip_high=high if config.ppo.clip_high is None else config.ppo.clip_high,
        dual_clip=config.ppo.dual_clip,
    )


def kl_options(config: LearnConfig) -> KlOptions | None:
    """The reference KL; None if it is off."""
    reference = config.reference
    if reference.kl == "none":
        return None
    in_reward = reference.kl == "reward"
    return KlOptions(
        coefficient=reference.coefficient,
        kind=reference.estimator or ("k1" if in_reward else "k2"),
        in_reward=in_reward,
    )


def aggregation_constant(config: LearnConfig) -> float | None:
    """What divides an episode's token sum; None under the other aggregations."""
    if config.ppo.aggregation != "constant":
        return None
    return config.ppo.aggregation_constant or float(config.play.max_episode_tokens)


def batch_options(config: LearnConfig, *, vocabulary_size: int) -> BatchOptions:
    """How trajectories become training data."""
    return BatchOptions(
        vocabulary_size=vocabulary_size,
        max_row_tokens=config.model.max_row_tokens,
        reward=reward_options(config),
        discount=config.advantage.discount,
    )


def pass_options(config: LearnConfig, ranks: Ranks = ALONE) -> PassOptions:
    """How rows go through the body of a model."""
    return PassOptions(
        pack_tokens=config.model.pack_tokens, recompute_layers=config.model.recompute_layers, ranks=ranks
    )
