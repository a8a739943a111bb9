"""How often a policy acts in vain or says one thing again and again.

Invalid and repeated actions are pooled over turns (RLVMR's table 2 names them, without a formula).

The paper's rate of repetitive actions is defined nowhere, so three readings are reported: the same transition as before
(primary), the same action text as before (an upper bound, which punishes legitimate returns) and the same action twice
running (tight loops only).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ActedTurn:
    """What is counted of a turn."""

    action: str
    is_available: bool
    format_valid: bool
    state: Hashable
    next_state: Hashable


def repetition_counts(turns: Sequence[ActedTurn]) -> Counter[str]:
    """Counts of an episode: turns, format_invalid, inadmissible, repeat_transition, repeat_text, repeat_consecutive."""
    counts = Counter[str]()
    actions: set[str] = set()
    transitions: set[tuple[Hashable, str, Hashable]] = set()
    previous: str | None = None
    for turn in turns:
        transition = (turn.state, turn.action, turn.next_state)
        counts["turns"] += 1
        counts["format_invalid"] += not turn.format_valid
        counts["inadmissible"] += not turn.is_available
        counts["repeat_transition"] += transition in transitions
        counts["repeat_text"] += turn.action in actions
        counts["repeat_consecutive"] += turn.action == previous
        actions.add(turn.action)
        transitions.add(transition)
        previous = turn.action
    return counts


def repeated_token_share(completions: Iterable[Sequence[int]]) -> float:
    """Share of sampled tokens that repeat the one before them in their completion; near 1 in degenerate output."""
    num_pairs = num_repeats = 0
    for ids in completions:
        num_pairs += max(0, len(ids) - 1)
        num_repeats += sum(first == second for first, second in pairwise(ids))
    return num_repeats / num_pairs if num_pairs else 0.0


def rates(counts: Counter[str]) -> dict[str, float]:
    """Shares of the turns, by name."""
    turns = counts["turns"]
    return {name: count / turns for name, count in counts.items() if name != "turns"} if turns else {}
