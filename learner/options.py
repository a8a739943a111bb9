"""Options of the mathematics from the configuration. The one place where both are known."""

from __future__ import annotations

from learner.advantages import GROUP_ADVANTAGES
from learner.advantages.shaping import RewardOptions
from learner.batch import BatchOptions
from learner.config import LearnConfig
from learner.filters.registry import FILTERS
from learner.filters.selection import GroupFilter
from learner.filters.variance_mass import VarianceMass
from learner.losses.entropy_history import HistoryOptions
from learner.losses.epo import EpoOptions
from learner.losses.off_policy import OffPolicyOptions
from learner.losses.ppo import PpoOptions
from learner.losses.step_loss import LossOptions
from learner.schedule import RateSchedule
from learner.update import UpdateOptions
from longturn.errors import ConfigError


def history_options(config: LearnConfig) -> HistoryOptions:
    """How past entropies become EPO's reference."""
    epo = config.epo
    return HistoryOptions(kind=epo.history, window=epo.history_window, decay=epo.history_decay)


def epo_options(config: LearnConfig) -> EpoOptions | None:
    """EPO's constants; None if it is off."""
    epo = config.epo
    if not epo.enabled:
        return None
    try:
        return EpoOptions(
            entropy_coefficient=epo.entropy_coefficient,
            smooth_coefficient=epo.smooth_coefficient,
            alpha=epo.alpha,
            kappa_low=epo.kappa_low,
            kappa_high=epo.kappa_high,
            gamma=epo.gamma,
            dynamic_weight=epo.dynamic_weight,
            form=epo.form,
            average=epo.average,
            history=history_options(config),
        )
    except ValueError as error:
        raise ConfigError(f"learner.epo: {error}") from error


def update_options(config: LearnConfig) -> UpdateOptions:
    """Everything that shapes an update."""
    optimizer, ppo = config.optimizer, config.ppo
    if config.advantage.estimator not in GROUP_ADVANTAGES:
        raise ConfigError(
            f"learner.advantage.estimator is {config.advantage.estimator!r}; known are {', '.join(GROUP_ADVANTAGES)}"
        )
    return UpdateOptions(
        loss=LossOptions(
            ppo=PpoOptions(clip_low=ppo.clip_low, clip_high=ppo.clip_high, dual_clip=ppo.dual_clip),
            epo=epo_options(config),
        ),
        off_policy=OffPolicyOptions(
            mode=config.off_policy.mode,
            cap=config.off_policy.cap,
            over_cap=config.off_policy.over_cap,
            lower=config.off_policy.lower,
            upper=config.off_policy.upper,
        ),
        aggregation=ppo.aggregation,
        estimator=config.advantage.estimator,
        turn_weight=config.advantage.turn_weight,
        temperature=config.play.temperature,
        max_grad_norm=optimizer.max_grad_norm,
        schedule=RateSchedule(
            kind=optimizer.schedule,
            learning_rate=optimizer.learning_rate,
            warmup_steps=optimizer.warmup_steps,
            min_ratio=optimizer.min_ratio,
            total_steps=config.batch.num_batches,
        ),
        permute_seed=config.seed if config.control.permute_advantages else None,
    )


def batch_options(config: LearnConfig, *, vocabulary_size: int) -> BatchOptions:
    """How trajectories become training data."""
    return BatchOptions(
        vocabulary_size=vocabulary_size,
        max_row_tokens=config.model.max_row_tokens,
        reward=RewardOptions(
            invalid_action_penalty=config.reward.invalid_action_penalty, format_penalty=config.reward.format_penalty
        ),
        discount=config.advantage.discount,
    )


def group_filter(config: LearnConfig) -> GroupFilter:
    """The rule that judges groups."""
    if config.snr.filter == "variance_mass":
        return VarianceMass(mass=config.snr.mass, success_reward=config.snr.success_reward, epsilon=config.snr.epsilon)
    return FILTERS[config.snr.filter]()
