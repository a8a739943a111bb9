"""Intervals for success shares: Wilson for one panel, Agresti-Min for the change on the same panel."""

from __future__ import annotations

import math
from collections.abc import Sequence

_Z95 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


def wilson(num_successes: float, num_episodes: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share (Wilson 1927); (0, 1) without episodes."""
    if not 0 <= num_successes <= num_episodes:
        raise ValueError(f"{num_successes} successes in {num_episodes} episodes")
    if num_episodes == 0:
        return 0.0, 1.0
    share, z2 = num_successes / num_episodes, _Z95**2
    denominator = 1 + z2 / num_episodes
    centre = (share + z2 / (2 * num_episodes)) / denominator
    half = _Z95 / denominator * math.sqrt(share * (1 - share) / num_episodes + z2 / (4 * num_episodes**2))
    # Rounding must not keep the ends from 0 and 1 where the formula reaches them.
    low = 0.0 if num_successes == 0 else centre - half
    high = 1.0 if num_successes == num_episodes else centre + half
    return low, high


def paired_change(before: Sequence[bool], after: Sequence[bool]) -> tuple[float, tuple[float, float]]:
    """The change of a success share between two plays of the same tasks, and its 95 % interval.

    The interval is Agresti and Min's (Statistics in Medicine 24, 2005): half an episode is added to each of the four
    cells of the paired table.
    """
    if len(before) != len(after) or not before:
        raise ValueError(f"paired plays need the same tasks, got {len(before)} and {len(after)}")
    num_tasks = len(before)
    gained = sum(1 for old, new in zip(before, after, strict=True) if new and not old)
    lost = sum(1 for old, new in zip(before, after, strict=True) if old and not new)
    total, up, down = num_tasks + 2.0, gained + 0.5, lost + 0.5
    centre = (up - down) / total
    half = _Z95 * math.sqrt(up + down - (up - down) ** 2 / total) / total
    return (gained - lost) / num_tasks, (max(-1.0, centre - half), min(1.0, centre + half))
