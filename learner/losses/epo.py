"""EPO: multi-turn entropy bonus and the smoothing penalty that keeps entropy in a corridor around its history.

    L = L_MT - lambda * L_H + c_s * beta_k * L_smooth,      beta_k = 1 + exp(-gamma * k / max(1, K // 2))

L_H is the mean token entropy, L_smooth the same mean of alpha * P, and P the distance of a token's entropy from the
corridor [kappa_low * reference, kappa_high * reference]. `k` counts training steps of the surviving history, K is their
planned number. Source: arXiv 2509.22576 v2; c_s = lambda is the paper. Entropy above the corridor is pushed down iff
c_s * beta_k * alpha > lambda, which the published constants never reach; the indicator form (v1 and the released code)
has no gradient. N tokens.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from learner.losses.entropy_history import EntropyHistory, HistoryOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EpoOptions:
    entropy_coefficient: float = 0.001
    """lambda, the weight of the entropy bonus."""
    smooth_coefficient: float | None = None
    """c_s, the weight of the smoothing penalty; lambda when absent, as in the paper. 0 is EPO-Base: the plain bonus."""
    alpha: float = 0.1
    """Scale of the penalty."""
    kappa_low: float = 0.0
    """Lower edge of the corridor in multiples of the reference entropy."""
    kappa_high: float = 2.0
    """Upper edge of the corridor in multiples of the reference entropy."""
    gamma: float = 3.0
    """Decay of the dynamic weight beta_k."""
    dynamic_weight: bool = True
    """False keeps beta_k = 1 (EPO W/O DW)."""
    form: str = "hinge"
    """hinge | indicator."""
    average: str = "nested"
    """nested | token_mean | turn_mean: the mean both terms use."""
    history: HistoryOptions = field(default_factory=HistoryOptions)
    """How past step entropies become the reference."""

    def __post_init__(self) -> None:
        if self.entropy_coefficient < 0 or self.alpha < 0 or self.gamma < 0:
            raise ValueError("entropy_coefficient, alpha and gamma must be >= 0")
        if self.smooth_coefficient is not None and self.smooth_coefficient < 0:
            raise ValueError(f"smooth_coefficient must be >= 0, got {self.smooth_coefficient}")
        if not 0 <= self.kappa_low < self.kappa_high:
            raise ValueError(f"need 0 <= kappa_low < kappa_high, got {self.kappa_low} and {self.kappa_high}")
        if self.form not in ("hinge", "indicator"):
            raise ValueError(f"form must be hinge or indicator, got {self.form!r}")
        if self.average not in ("nested", "token_mean", "turn_mean"):
            raise ValueError(f"average must be nested, token_mean or turn_mean, got {self.average!r}")

    @property
    def penalty_coefficient(self) -> float:
        """c_s * alpha."""
        smooth = self.entropy_coefficient if self.smooth_coefficient is None else self.smooth_coefficient
        return smooth * self.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class EpoStep:
    """What stays fixed during one training step."""

    beta: float
    reference: float | None
    """Reference entropy in nats from earlier steps; absent at the first, where the penalty is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorridorOccupancy:
    """Shares of tokens, summing to 1; a token exactly on an edge is outside."""

    below: float
    inside: float
    above: float


def beta(training_step: int, total_steps: int, *, gamma: float = 3.0) -> float:
    """Dynamic weight beta_k: 2 at step 0, about 1.05 halfway, never below 1."""
    return 1.0 + math.exp(-gamma * training_step / max(1, total_steps // 2))


def epo_step(options: EpoOptions, history: EntropyHistory, training_step: int, total_steps: int) -> EpoStep:
    """Constants of the step; `history` holds earlier steps only."""
    weight = beta(training_step, total_steps, gamma=options.gamma) if options.dynamic_weight else 1.0
    return EpoStep(beta=weight, reference=history.reference)


def corridor_penalty(entropies_N: Tensor, step: EpoStep, options: EpoOptions) -> Tensor:
    """P per token, without alpha: distance from the corridor (hinge) or 1 outside it (indicator, no gradient)."""
    if step.reference is None:
        return torch.zeros_like(entropies_N)
    low, high = options.kappa_low * step.reference, options.kappa_high * step.reference
    if options.form == "indicator":
        return 1.0 - ((entropies_N > low) & (entropies_N < high)).to(entropies_N.dtype)
    # relu, unlike clamp, has no gradient on the edge itself: an entropy of 0 is not below a corridor that starts at 0.
    return torch.relu(low - entropies_N) + torch.relu(entropies_N - high)


def entropy_losses(entropies_N: Tensor, step: EpoStep, options: EpoOptions) -> Tensor:
    """Unweighted loss per token: -lambda * H + c_s * beta_k * alpha * P."""
    bonus_N = -options.entropy_coefficient * entropies_N
    return bonus_N + options.penalty_coefficient * step.beta * corridor_penalty(entropies_N, step, options)


def corridor_occupancy(entropies_N: Tensor, mask_N: Tensor, step: EpoStep, options: EpoOptions) -> CorridorOccupancy:
    """Where the masked tokens' entropies lie; all inside while there is no reference or no token."""
    entropies = entropies_N.detach()[mask_N.bool()]
    if step.reference is None or not entropies.numel():
        return CorridorOccupancy(below=0.0, inside=1.0, above=0.0)
    below = (entropies <= options.kappa_low * step.reference).double().mean().item()
    above = (entropies >= options.kappa_high * step.reference).double().mean().item()
    return CorridorOccupancy(below=below, inside=1.0 - below - above, above=above)


def gradient_shares(entropies_N: Tensor, weights_N: Tensor, step: EpoStep, options: EpoOptions) -> tuple[float, float]:
    """L1 norms, over the tokens, of d loss / d H from the bonus and from the penalty; says which of the two acts."""
    weight = weights_N.sum().item()
    if step.reference is None or options.form == "indicator":
        return options.entropy_coefficient * weight, 0.0
    low, high = options.kappa_low * step.reference, options.kappa_high * step.reference
    outside = weights_N[(entropies_N < low) | (entropies_N > high)].sum().item()
    return options.entropy_coefficient * weight, options.penalty_coefficient * step.beta * outside
