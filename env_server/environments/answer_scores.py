"""Exact match and F1 of short answers, with the normalisation of SQuAD and the rule for yes and no of HotpotQA.

Rajpurkar et al., SQuAD, 2016; Yang et al., HotpotQA, 2018 (`hotpot_evaluate_v1.py`).
"""

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset(("yes", "no", "noanswer"))


def normalized(answer: str) -> str:
    """Lower case, without punctuation, articles and spare blanks."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(given: str, expected: str) -> bool:
    """Whether two answers are the same once normalised."""
    return normalized(given) == normalized(expected)


def f1(given: str, expected: str) -> float:
    """Harmonic mean of precision and recall over the normalised words, in [0, 1]; all or nothing for yes and no."""
    ours, theirs = normalized(given), normalized(expected)
    if ours != theirs and (ours in _CLOSED or theirs in _CLOSED):
        return 0.0
    our_words, their_words = ours.split(), theirs.split()
    num_shared = sum((Counter(our_words) & Counter(their_words)).values())
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(our_words), num_shared / len(their_words)
    return 2 * precision * recall / (precision + recall)
