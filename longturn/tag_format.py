"""The plain tag format of a turn, known to whoever writes it (actors) and to whoever imitates it (the learner).

    <obs>OBSERVATION<think>REASONING</think><action>ACTION</action>

Everything up to and including `<think>` is prompt; the rest is completion. Every tag is a token of its own.
"""

from __future__ import annotations

OBSERVATION_TAG = "<obs>"
THINK_TAG = "<think>"
THINK_END_TAG = "</think>"
ACTION_TAG = "<action>"
ACTION_END_TAG = "</action>"
TAGS = (OBSERVATION_TAG, THINK_TAG, THINK_END_TAG, ACTION_TAG, ACTION_END_TAG)
MAX_CLOSING_TOKENS = 3
"""Most tags that close a completion: `</think>`, `<action>` and `</action>` where it broke off in its reasoning."""
