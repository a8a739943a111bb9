"""Entropy bonus with a coefficient that seeks a target entropy (Skywork-OR1, arXiv 2505.22312, 3.2.5).

    c_{k+1} = c_k + step if e_k < target else c_k - step, within [0, largest]
    coefficient_k = c_k if e_k <= target else 0

e_k is the token-mean entropy of the proximal policy over the unfiltered pool at training step k. The released scripts
move by 1e-4 per step, the paper's text by 5e-3; the released code moves c before it is used.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveOptions:
    """Where the coefficient goes and how fast (arXiv 2505.22312, 3.2.5).

    Entropies are in nats per token; coefficients have the unit of a loss per nat. ValueError unless all are above 0.
    """

    target: float = 0.2
    """Wanted entropy in nats per token."""
    step: float = 1e-4
    """How far the coefficient moves per training step."""
    largest: float = 5e-3
    """Upper bound of the coefficient."""

    def __post_init__(self) -> None:
        if min(self.target, self.step, self.largest) <= 0:
            raise ValueError("target, step and largest must be > 0")

    def moved(self, coefficient: float, entropy: float) -> float:
        """c_{k+1} from c_k and e_k."""
        towards = self.step if entropy < self.target else -self.step
        return min(self.largest, max(0.0, coefficient + towards))

    def applied(self, coefficient: float, entropy: float) -> float:
        """The coefficient of the bonus at step k."""
        return coefficient if entropy <= self.target else 0.0
