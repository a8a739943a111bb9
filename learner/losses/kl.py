"""Per-token estimators of KL(policy || reference) from samples of the policy (Schulman 2020). N tokens.

As a loss, the expected on-policy gradient of k2 is that of KL(policy || reference), that of k3 is that of KL(reference
|| policy), and that of k1 is zero: k1 only injects noise, so it is offered in the reward and not as a loss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from learner.losses.ratio import log_ratio

KlEstimator = Callable[[Tensor, Tensor], Tensor]
_CLAMP = 10.0


def k1(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """Plain log-ratio: unbiased as a value, can be negative."""
    return logprobs_N - reference_logprobs_N


def absolute(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """|log-ratio|: never negative, biased upward."""
    return k1(logprobs_N, reference_logprobs_N).abs()


def k2(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """Half the squared log-ratio."""
    return 0.5 * k1(logprobs_N, reference_logprobs_N).square()


def k3(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """exp(-d) - 1 + d with d the log-ratio, clamped in log space: unbiased as a value and never negative."""
    difference_N = log_ratio(reference_logprobs_N, logprobs_N)
    return difference_N.expm1() - difference_N


def k3_clamped(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """k3 held below 10, without gradient there: verl's low_var_kl."""
    return k3(logprobs_N, reference_logprobs_N).clamp(max=_CLAMP)


KL_LOSSES: Mapping[str, KlEstimator] = {"k2": k2, "k3": k3, "k3_clamped": k3_clamped}
KL_ESTIMATORS: Mapping[str, KlEstimator] = {"k1": k1, "abs": absolute, **KL_LOSSES}


@dataclass(frozen=True, slots=True, kw_only=True)
class KlOptions:
    """Weight and estimator of the reference KL; `in_reward` says where it goes."""

    coefficient: float = 0.01
    """Weight of the reference KL in the loss, or in the reward."""
    kind: str = "k2"
    """A name in KL_LOSSES, or in KL_ESTIMATORS if it goes into the reward."""
    in_reward: bool = False
    """True takes it off the return, False adds it to the loss."""

    def __post_init__(self) -> None:
        if self.coefficient < 0:
            raise ValueError(f"coefficient must be >= 0, got {self.coefficient}")
        if self.kind == "k1" and not self.in_reward:
            raise ValueError("k1 has zero expected gradient as a loss; use k2 or k3")
        known = KL_ESTIMATORS if self.in_reward else KL_LOSSES
        if self.kind not in known:
            raise ValueError(f"unknown KL estimator {self.kind!r}; known: {', '.join(known)}")
