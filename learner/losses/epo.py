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

from learner.losses.entropy_history import EntropyHistory, HistoryOptions, TurnEntropyHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class EpoOptions:
    """Constants of both entropy terms, named as in arXiv 2509.22576 v2, whose values are the defaults.

    Coefficients are loss per nat of a token's entropy; the corridor's edges are multiples of the reference entropy.
    ValueError for a negative coefficient, an empty corridor, a floor outside [0, 1], or an unknown choice.
    """

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
    weight_schedule: str = "paper"
    """paper | released: which formula the dynamic weight follows."""
    form: str = "hinge"
    """hinge | indicator."""
    average: str = "nested"
    """nested | token_mean | turn_mean: the mean both terms use."""
    decay: str = "none"
    """none | turns | steps: over what the whole term fades (EPO-Decay in its two readings)."""
    decay_floor: float = 0.0
    """What is left of its weight at the end of the fading."""
    history: HistoryOptions = field(default_factory=HistoryOptions)
    """How past step entropies become the reference."""
    history_scope: str = "step"
    """step | turn | turn_released: one reference for all tokens, one per turn index, or that as the code has it."""

    def __post_init__(self) -> None:
        if self.entropy_coefficient < 0 or self.alpha < 0 or self.gamma < 0:
            raise ValueError("entropy_coefficient, alpha and gamma must be >= 0")
        if self.smooth_coefficient is not None and self.smooth_coefficient < 0:
            raise ValueError(f"smooth_coefficient must be >= 0, got {self.smooth_coefficient}")
        if not 0 <= self.kappa_low < self.kappa_high:
            raise ValueError(f"need 0 <= kappa_low < kappa_high, got {self.kappa_low} and {self.kappa_high}")
        if not 0 <= self.decay_floor <= 1:
            raise ValueError(f"decay_floor must be in [0, 1], got {self.decay_floor}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")

    @property
    def penalty_coefficient(self) -> float:
        """c_s * alpha."""
        smooth = self.entropy_coefficient if self.smooth_coefficient is None else self.smooth_coefficient
        return smooth * self.alpha


_CHOICES = {
    "weight_schedule": ("paper", "released"),
    "form": ("hinge", "indicator"),
    "average": ("nested", "token_mean", "turn_mean"),
    "decay": ("none", "turns", "steps"),
    "history_scope": ("step", "turn", "turn_released"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpoStep:
    """What stays fixed during one training step."""

    beta: float
    reference: float | None
    """Reference entropy in nats from earlier steps; absent at the first, where the penalty is 0."""
    turn_references: tuple[float | None, ...] | None = None
    """Reference of each turn index, where they have their own; absent: `reference` holds for all."""
    scale: float = 1.0
    """Multiplies the whole entropy term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorridorOccupancy:
    """Shares of the masked tokens, summing to 1; a token exactly on an edge is outside."""

    below: float
    inside: float
    above: float


def beta(training_step: int, total_steps: int, *, gamma: float = 3.0) -> float:
    """Dynamic weight beta_k: 2 at step 0, about 1.05 halfway, never below 1."""
    return 1.0 + math.exp(-gamma * training_step / max(1, total_steps // 2))


def released_weight(training_step: int, total_steps: int) -> float:
    """The released code's other weight, decreasing: 1 to 0.83 up to the middle, then a jump to 0.8 and down to 0.04.

    Its 150 epochs are hard coded there; here they are the planned steps.
    """
    middle = max(1, total_steps // 2)
    if training_step <= middle:
        return 1.0 - 0.2 * (1.0 - math.exp(-2.0 * training_step / middle))
    return 0.8 * math.exp(-3.0 * (training_step - middle) / middle)


def dynamic_weight(options: EpoOptions, training_step: int, total_steps: int) -> float:
    """The weight of the smoothing penalty at a training step, by the options."""
    if not options.dynamic_weight:
        return 1.0
    if options.weight_schedule == "released":
        return released_weight(training_step, total_steps)
    return beta(training_step, total_steps, gamma=options.gamma)


def epo_step(
    options: EpoOptions,
    history: EntropyHistory,
    training_step: int,
    total_steps: int,
    *,
    turn_history: TurnEntropyHistory | None = None,
    scale: float = 1.0,
) -> EpoStep:
    """Constants of the step; the histories hold earlier steps only (but see `turn_released`)."""
    if options.decay == "steps":
        scale *= faded(training_step / max(1, total_steps - 1), options.decay_floor)
    return EpoStep(
        beta=dynamic_weight(options, training_step, total_steps),
        reference=history.reference,
        turn_references=None if turn_history is None else turn_history.references,
        scale=scale,
    )


def faded(share: float, floor: float) -> float:
    """EPO-Decay's weight, of which the paper gives no formula: from 1 down to `floor` on a straight line."""
    return 1.0 - (1.0 - floor) * min(1.0, share)


def corridor_penalty(
    entropies_N: Tensor, step: EpoStep, options: EpoOptions, references_N: Tensor | None = None
) -> Tensor:
    """P per token, without alpha: distance from the corridor (hinge) or 1 outside it (indicator, no gradient).

    `references_N` gives every token a reference of its own, NaN where it has none; else the step's holds for all.
    """
    edges = _edges(entropies_N, step, options, references_N)
    if edges is None:
        return torch.zeros_like(entropies_N)
    low_N, high_N = edges
    if options.form == "indicator":
        return 1.0 - ((entropies_N > low_N) & (entropies_N < high_N)).to(entropies_N.dtype)
    # relu, unlike clamp, has no gradient on the edge itself: an entropy of 0 is not below a corridor that starts at 0.
    return torch.relu(low_N - entropies_N) + torch.relu(entropies_N - high_N)


def entropy_losses(
    entropies_N: Tensor, step: EpoStep, options: EpoOptions, references_N: Tensor | None = None
) -> Tensor:
    """Unweighted loss per token: -lambda * H + c_s * beta_k * alpha * P."""
    bonus_N = -options.entropy_coefficient * entropies_N
    penalty_N = corridor_penalty(entropies_N, step, options, references_N)
    return bonus_N + options.penalty_coefficient * step.beta * penalty_N


def corridor_occupancy(
    entropies_N: Tensor, mask_N: Tensor, step: EpoStep, options: EpoOptions, references_N: Tensor | None = None
) -> CorridorOccupancy:
    """Where the masked tokens' entropies lie; all inside while there is no reference or no token."""
    mask_N = mask_N.bool()
    edges = _edges(entropies_N.detach(), step, options, references_N)
    if edges is None or not mask_N.any():
        return CorridorOccupancy(below=0.0, inside=1.0, above=0.0)
    below = (entropies_N <= edges[0])[mask_N].double().mean().item()
    above = (entropies_N >= edges[1])[mask_N].double().mean().item()
    return CorridorOccupancy(below=below, inside=1.0 - below - above, above=above)


def gradient_shares(
    entropies_N: Tensor, weights_N: Tensor, step: EpoStep, options: EpoOptions, references_N: Tensor | None = None
) -> tuple[float, float]:
    """L1 norms, over the tokens, of d loss / d H from the bonus and from the penalty; says which of the two acts."""
    weight = weights_N.sum().item()
    edges = _edges(entropies_N, step, options, references_N)
    if edges is None or options.form == "indicator":
        return options.entropy_coefficient * weight, 0.0
    outside = weights_N[(entropies_N < edges[0]) | (entropies_N > edges[1])].sum().item()
    return options.entropy_coefficient * weight, options.penalty_coefficient * step.beta * outside


def _edges(
    entropies_N: Tensor, step: EpoStep, options: EpoOptions, references_N: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Lower and upper edge of every token's corridor, infinitely wide where it has no reference; None: nowhere any."""
    if references_N is None:
        if step.reference is None:
            return None
        references_N = torch.full_like(entropies_N, step.reference)
    has_none_N = references_N.isnan()
    low_N = (options.kappa_low * references_N).masked_fill(has_none_N, -math.inf)
    return low_N.detach(), (options.kappa_high * references_N).masked_fill(has_none_N, math.inf).detach()
