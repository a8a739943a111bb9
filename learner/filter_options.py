"""The filter that `[learner.snr]` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from learner.config import LearnConfig
from learner.filters.fraction import Fraction
from learner.filters.has_variance import HasVariance
from learner.filters.keep_all import KeepAll
from learner.filters.min_p import MinP
from learner.filters.running_scores import RunningScores
from learner.filters.selection import GroupFilter
from learner.filters.std_linear import StdLinear
from learner.filters.std_softmax import StdSoftmax
from learner.filters.streaming import StreamingMass
from learner.filters.top_k import TopK
from learner.filters.variance_mass import VarianceMass
from learner.method_config import SnrConfig


def group_filter(config: LearnConfig, running: RunningScores | None = None) -> GroupFilter:
    """The rule that judges groups; `running` are the scores that a streaming one has seen, which it extends."""
    snr = config.snr
    if snr.filter == "streaming":
        return StreamingMass(
            rule=batch_rule(snr),
            groups_per_batch=config.batch.groups_per_step,
            running=RunningScores() if running is None else running,
        )
    return _RULES[snr.filter](snr)


def batch_rule(snr: SnrConfig) -> VarianceMass:
    """The rule of whole batches by the same settings: the default, and what runs in a streaming filter's shadow."""
    return VarianceMass(
        mass=snr.mass,
        success_reward=snr.success_reward,
        epsilon=snr.epsilon,
        include_zero=bool(snr.include_zero),
    )


def _std_linear(snr: SnrConfig) -> StdLinear:
    return StdLinear(
        mass=snr.mass,
        epsilon=snr.epsilon * snr.success_reward,
        include_zero=bool(snr.include_zero),
        smallest_first=snr.smallest_first,
    )


def _std_softmax(snr: SnrConfig) -> StdSoftmax:
    return StdSoftmax(mass=snr.mass, include_zero=snr.include_zero is not False)


def _top_k(snr: SnrConfig) -> TopK:
    return TopK(num_groups=snr.num_groups) if snr.share is None else TopK(num_groups=snr.num_groups, share=snr.share)


def _fraction(snr: SnrConfig) -> Fraction:
    return Fraction() if snr.share is None else Fraction(share=snr.share)


def _min_p(snr: SnrConfig) -> MinP:
    return MinP() if snr.share is None else MinP(share=snr.share)


_RULES: Mapping[str, Callable[[SnrConfig], GroupFilter]] = {
    "variance_mass": batch_rule,
    "none": lambda snr: KeepAll(),
    "fraction": _fraction,
    "top_k": _top_k,
    "min_p": _min_p,
    "std_linear": _std_linear,
    "std_softmax": _std_softmax,
    "has_variance": lambda snr: HasVariance(success_reward=snr.success_reward),
}
