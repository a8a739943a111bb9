"""Policy gradient from the most uncertain tokens only (Wang et al. 2025, arXiv 2506.01939: the top 20 %).

Tokens at or above the entropy that the top share of the whole step reaches keep their advantage; ties are all kept. The
others stay in every denominator, as in the paper; the released code draws the line per micro-batch and counts only the
chosen tokens.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from learner.advantages.token_shaping import ShapingInputs


def entropy_threshold(entropies_N: Tensor, mask_N: Tensor, share: float) -> float:
    """The smallest entropy among the top `share` (rounded up) of the masked tokens; infinite without any."""
    chosen = entropies_N[mask_N.bool()]
    if not chosen.numel():
        return math.inf
    size = math.ceil(share * chosen.numel() - 1e-9)
    return chosen.topk(size).values[-1].item()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopEntropy:
    share: float = 0.2
    """Share of the tokens that are trained."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")

    def __call__(self, inputs: ShapingInputs) -> Tensor:
        """Advantages, 0 below the threshold."""
        threshold = entropy_threshold(inputs.entropies_N, inputs.mask_N, self.share)
        return inputs.advantages_N.masked_fill(inputs.entropies_N < threshold, 0.0)
