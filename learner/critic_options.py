"""What `[learner.critic]` chooses: how values become advantages, and the critic itself."""

from __future__ import annotations

from learner.advantages.value_based import VALUE_ADVANTAGES, GaeOptions
from learner.config import LearnConfig
from learner.critic.core import CriticOptions
from learner.critic.estimate import ValueOptions
from learner.critic.interface import NO_CRITIC, Critic
from learner.critic.own_trunk import OwnTrunkCritic
from learner.critic.shared_trunk import SharedTrunkCritic
from learner.model import PolicyModel
from learner.passes import PassOptions
from learner.schedule import RateSchedule
from longturn.errors import ConfigError


def value_options(config: LearnConfig) -> ValueOptions | None:
    """How values become advantages; None if the estimator needs none."""
    estimator = VALUE_ADVANTAGES.get(config.advantage.estimator)
    if estimator is None:
        return None
    critic = config.critic
    return ValueOptions(
        estimator=estimator,
        gae=GaeOptions(discount=critic.discount, smoothing=critic.smoothing, turn_discount=critic.turn_discount),
        whiten=critic.whiten,
        bootstrap_on_truncation=critic.bootstrap_on_truncation,
    )


def make_critic(config: LearnConfig, policy: PolicyModel, *, passes: PassOptions) -> Critic:
    """The critic that the estimator asks for; ConfigError if its folder holds no model or one of other ids."""
    if config.advantage.estimator not in VALUE_ADVANTAGES:
        return NO_CRITIC
    options = critic_options(config)
    if config.critic.trunk == "shared":
        return SharedTrunkCritic(policy, options, passes=passes)
    folder = config.critic.path or policy.folder
    try:
        model = PolicyModel.load(folder, device=config.model.device, passes=passes)
    except ConfigError as error:
        raise ConfigError(f"learner.critic.path: {error}") from error
    if model.vocabulary_size != policy.vocabulary_size:
        raise ConfigError(f"learner.critic.path: {folder} has another vocabulary than the policy")
    return OwnTrunkCritic(model.body, model.hidden_size, options, device=model.device, passes=passes)


def critic_options(config: LearnConfig) -> CriticOptions:
    """How the critic learns: AdamW as the policy's, at its own rate."""
    optimizer, critic = config.optimizer, config.critic
    return CriticOptions(
        schedule=RateSchedule(
            kind=optimizer.schedule,
            learning_rate=critic.learning_rate,
            warmup_steps=optimizer.warmup_steps,
            min_ratio=optimizer.min_ratio,
            total_steps=config.batch.num_batches,
        ),
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=critic.max_grad_norm,
        value_clip=critic.value_clip or None,
        warmup_steps=critic.warmup_steps,
        num_updates=critic.num_updates,
        coefficient=critic.coefficient,
    )
