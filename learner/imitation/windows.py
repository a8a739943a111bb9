"""Windows: runs of whole turns cut out of an episode.

Early updates see windows, since attention over whole episodes costs several times as much and teaches the same. They
lie anywhere in the episode: its rare turns come last, and beginnings alone would never show them.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence

from learner.imitation.rows import DemonstrationRow

Window = tuple[Sequence[int], Sequence[bool]]
"""Ids and response mask."""

_END_SHARE = 0.2
"""Share of windows at either end of the episode, whose turns uniformly placed windows would see least."""
_CONTEXT_TURNS = 3
"""First turns of a window that are read, not imitated: what they depend on may lie before it."""


def cut_window(row: DemonstrationRow, num_tokens: int, draw: random.Random) -> Window:
    """A window of at most `num_tokens` (at least one turn); short episodes stay whole."""
    if len(row.ids) <= num_tokens:
        return row.ids, row.response_mask
    bounds = (*row.turn_starts, len(row.ids))
    last_first = min(bisect.bisect_left(bounds, len(row.ids) - num_tokens), len(bounds) - 2)
    first = _first_turn(last_first, draw)
    end = max(bisect.bisect_right(bounds, bounds[first] + num_tokens) - 1, first + 1)
    ids, mask = row.ids[bounds[first] : bounds[end]], row.response_mask[bounds[first] : bounds[end]]
    if first == 0:
        return ids, mask
    num_read = bounds[min(first + _CONTEXT_TURNS, end - 1)] - bounds[first]
    return ids, (False,) * num_read + mask[num_read:]


def _first_turn(last_first: int, draw: random.Random) -> int:
    place = draw.random()
    if place < _END_SHARE:
        return 0
    return last_first if place < 2 * _END_SHARE else draw.randint(0, last_first)
