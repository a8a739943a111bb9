"""What `[learner.epo]` and `[learner.entropy_control]` choose."""

from __future__ import annotations

from learner.advantages.clip_cov import ClipCov
from learner.advantages.entropy_advantage import EntropyAdvantage
from learner.advantages.token_shaping import AdvantageShaper
from learner.advantages.top_entropy import TopEntropy
from learner.config import LearnConfig
from learner.losses.adaptive_coefficient import AdaptiveOptions
from learner.losses.entropy_history import HistoryOptions
from learner.losses.entropy_weights import TurnCap, TurnDecay, TurnScale
from learner.losses.epo import EpoOptions
from learner.losses.kl_cov import KlCov
from learner.losses.ppo import PpoOptions


def history_options(config: LearnConfig) -> HistoryOptions:
    """How past entropies become EPO's reference."""
    epo = config.epo
    return HistoryOptions(kind=epo.history, window=epo.history_window, decay=epo.history_decay)


def entropy_term(config: LearnConfig) -> EpoOptions | None:
    """EPO's constants, or those of the bonus that stands in its place; None without any entropy term."""
    epo, control = config.epo, config.entropy_control
    if control.method == "adaptive_coefficient":
        # The whole coefficient comes from the step's scale.
        return EpoOptions(entropy_coefficient=1.0, smooth_coefficient=0.0, average=control.average)
    if control.method == "turn_capped_bonus":
        return EpoOptions(
            entropy_coefficient=control.bonus_coefficient, smooth_coefficient=0.0, average=control.average
        )
    if not epo.enabled:
        return None
    return EpoOptions(
        entropy_coefficient=epo.entropy_coefficient,
        smooth_coefficient=epo.smooth_coefficient,
        alpha=epo.alpha,
        kappa_low=epo.kappa_low,
        kappa_high=epo.kappa_high,
        gamma=epo.gamma,
        dynamic_weight=epo.dynamic_weight,
        weight_schedule=epo.weight_schedule,
        form=epo.form,
        average=epo.average,
        decay=epo.decay,
        decay_floor=epo.decay_floor,
        history=history_options(config),
        history_scope=epo.history_scope,
    )


def turn_scale(config: LearnConfig) -> TurnScale | None:
    """What scales the entropy term from turn to turn."""
    if config.entropy_control.method == "turn_capped_bonus":
        return TurnCap(cap=config.entropy_control.turn_cap)
    if config.epo.enabled and config.epo.decay == "turns":
        return TurnDecay(floor=config.epo.decay_floor)
    return None


def adaptive_options(config: LearnConfig) -> AdaptiveOptions | None:
    """How the coefficient of the bonus seeks its target; None if it is fixed."""
    control = config.entropy_control
    if control.method != "adaptive_coefficient":
        return None
    return AdaptiveOptions(
        target=control.target_entropy, step=control.coefficient_step, largest=control.coefficient_max
    )


def advantage_shaper(config: LearnConfig, ppo: PpoOptions) -> AdvantageShaper | None:
    """What reshapes advantages token by token."""
    control = config.entropy_control
    if control.method == "entropy_advantage":
        return EntropyAdvantage(alpha=control.alpha, kappa=control.kappa)
    if control.method == "clip_cov":
        return ClipCov(ppo=ppo, share=control.cov_share, low=control.cov_low, high=control.cov_high)
    if control.method == "top_entropy":
        return TopEntropy(share=control.top_share)
    return None


def anchor_kl(config: LearnConfig) -> AdvantageShaper | None:
    """What gives tokens a penalty for leaving the anchor."""
    control = config.entropy_control
    if control.method != "kl_cov":
        return None
    return KlCov(share=control.cov_share, coefficient=control.cov_coefficient)
