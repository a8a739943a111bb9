"""Methods that do not fit together, each refused with the reason and the setting that mends it. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from learner.config import LearnConfig

VALUE_ESTIMATORS = ("gae", "turn_gae", "bi_level_gae")
"""Names of the estimators that need a critic; `learner.advantages.value_based` has them."""

_BONUSES = ("adaptive_coefficient", "turn_capped_bonus")


def refusals(settings: LearnConfig) -> Iterator[str]:
    """One line per combination that is refused."""
    yield from _groups(settings)
    yield from _advantages(settings)
    yield from _critic(settings)
    yield from _off_policy(settings)
    yield from _losses(settings)
    yield from _entropy(settings)


def _groups(settings: LearnConfig) -> Iterator[str]:
    snr, size = settings.snr, settings.batch.group_size
    if snr.filter != "none" and size < 2:
        yield "batch.group_size must be 2 or more, or snr.filter = none: one member has no variance"
    if settings.batch.max_refill and (size < 2 or snr.filter in ("none", "streaming")):
        yield (
            "batch.max_refill stands in for groups without variance: set batch.group_size to 2 or more and a filter "
            "that judges whole batches, such as snr.filter = has_variance, or batch.max_refill = 0"
        )
    if settings.diagnostics.gradients_every and size < 2:
        yield "diagnostics.gradients_every sorts groups by variance: set it to 0, or batch.group_size to 2 or more"
    if snr.soft_reweight and settings.advantage.estimator != "grpo":
        yield (
            "snr.soft_reweight puts back the spread that grpo divides by: set advantage.estimator = grpo, or "
            "snr.soft_reweight = false"
        )
    if snr.num_groups is not None and snr.filter != "top_k":
        yield f"snr.num_groups is read by snr.filter = top_k only, not by {snr.filter}"


def _critic(settings: LearnConfig) -> Iterator[str]:
    critic, num_batches = settings.critic, settings.batch.num_batches
    if settings.advantage.estimator not in VALUE_ESTIMATORS:
        return
    if critic.trunk == "shared" and critic.path is not None:
        yield "critic.path is read by critic.trunk = own only: leave it out"
    if critic.trunk == "shared" and critic.num_updates > 1:
        yield "critic.num_updates must be 1 with critic.trunk = shared: the trunk takes one step with the policy"
    if critic.warmup_steps >= num_batches:
        yield f"critic.warmup_steps must lie below batch.num_batches, which is {num_batches}, or nothing is trained"


def _advantages(settings: LearnConfig) -> Iterator[str]:
    advantage, reward = settings.advantage, settings.reward
    if advantage.estimator in ("gigpo", "rlvmr") and advantage.turn_weight > 0:
        yield (
            f"advantage.estimator = {advantage.estimator} has a turn-level term of its own: set "
            "advantage.turn_weight = 0"
        )
    if advantage.estimator in ("rloo", "gigpo") and settings.batch.group_size < 2:
        yield f"advantage.estimator = {advantage.estimator} compares members: set batch.group_size to 2 or more"
    if reward.overlong_penalty > 0 and reward.overlong_max_tokens is None:
        yield "reward.overlong_penalty needs reward.overlong_max_tokens, the sampled tokens of an episode at its limit"
    limit, soft = reward.overlong_max_tokens, reward.overlong_soft_tokens
    if limit is not None and soft is not None and soft > limit:
        yield "reward.overlong_soft_tokens must not exceed reward.overlong_max_tokens"


def _off_policy(settings: LearnConfig) -> Iterator[str]:
    off_policy = settings.off_policy
    if off_policy.mode == "none" and settings.batch.max_policy_lag > 0 and not off_policy.accept_bias:
        yield (
            "off_policy.mode = none ignores staleness: set batch.max_policy_lag = 0, or off_policy.accept_bias = "
            "true to accept the bias"
        )
    if off_policy.mode != "log_linear":
        return
    unscored = {
        "off_policy.veto": off_policy.veto is not None,
        "ppo.loss = gspo": settings.ppo.loss == "gspo",
        "reference.kl = reward": settings.reference.kl == "reward",
        f"entropy_control.method = {settings.entropy_control.method}": settings.entropy_control.method != "none",
    }
    for name, is_asked_for in unscored.items():
        if is_asked_for:
            yield (
                f"{name} looks at logprobs or entropies before the update, and off_policy.mode = log_linear saves that "
                "pass: set off_policy.mode = decoupled"
            )


def _losses(settings: LearnConfig) -> Iterator[str]:
    ppo, reference = settings.ppo, settings.reference
    if ppo.loss == "gspo" and ppo.aggregation != "seq_mean_token_mean":
        yield "ppo.loss = gspo is a mean over trajectories: set ppo.aggregation = seq_mean_token_mean"
    if ppo.dual_clip is not None and (ppo.loss == "gspo" or settings.entropy_control.method == "kl_cov"):
        yield "ppo.dual_clip belongs to the clip per token: leave it out with ppo.loss = gspo and with kl_cov"
    if ppo.aggregation_constant is not None and ppo.aggregation != "constant":
        yield "ppo.aggregation_constant is read by ppo.aggregation = constant only"
    if reference.kl == "loss" and reference.estimator in ("k1", "abs"):
        reason = {"k1": "has zero expected gradient as a loss", "abs": "has no KL's gradient as a loss"}
        yield (
            f"reference.estimator = {reference.estimator} {reason[reference.estimator]}: use k2 or k3, or "
            "reference.kl = reward"
        )


def _entropy(settings: LearnConfig) -> Iterator[str]:
    epo, control = settings.epo, settings.entropy_control
    if control.method in _BONUSES and epo.enabled:
        yield f"entropy_control.method = {control.method} is an entropy bonus itself: set epo.enabled = false"
    if control.method == "kl_cov" and settings.ppo.loss == "gspo":
        yield "entropy_control.method = kl_cov is a policy loss per token: set ppo.loss = ppo"
    if control.cov_low >= control.cov_high:
        yield "entropy_control.cov_low must lie below entropy_control.cov_high"
    if epo.kappa_low >= epo.kappa_high:
        yield "epo.kappa_low must lie below epo.kappa_high"
    if epo.history_scope == "turn_released" and not settings.play.max_turns:
        yield "epo.history_scope = turn_released pads every step to the turn limit: set play.max_turns"
