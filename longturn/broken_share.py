"""How many games may break before a command that plays many of them fails: the rule, and its default."""

from __future__ import annotations

DEFAULT_MAX_BROKEN_SHARE = 0.02


def too_many_broke(num_broken: int, total: int, *, max_broken_share: float) -> bool:
    """Whether what broke is more than that share of all, or is all there was; nothing played is not too many broken."""
    return num_broken > max_broken_share * total or 0 < total == num_broken
