"""How the policy loss shrinks with the share of groups that the filter keeps: `none`, `linear` or `sqrt`.

Advantages are multiplied, so entropy and KL terms keep their size: their share of the gradient grows exactly when the
signal is scarce.
"""

import math
from collections.abc import Callable, Mapping

LossScaling = Callable[[float], float]


def none(kept_ratio: float) -> float:
    """1, whatever is kept."""
    return 1.0


def linear(kept_ratio: float) -> float:
    """The kept ratio."""
    return kept_ratio


def sqrt(kept_ratio: float) -> float:
    """Its root."""
    return math.sqrt(kept_ratio)


LOSS_SCALINGS: Mapping[str, LossScaling] = {"none": none, "linear": linear, "sqrt": sqrt}
