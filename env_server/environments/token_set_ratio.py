"""How alike two phrases are as sets of words, 0 to 100, as `thefuzz.fuzz.token_set_ratio` has it (version 0.22)."""

import re

_NO_WORD = re.compile(r"\W")


def token_set_ratio(one: str, other: str) -> int:
    """100 where all words of one are among the other's; else the best similarity of shared and own words, joined."""
    ours, theirs = _words(one), _words(other)
    if not ours or not theirs:
        return 0
    shared = " ".join(sorted(ours & theirs))
    if shared and (ours <= theirs or theirs <= ours):
        return 100
    our_text = f"{shared} {' '.join(sorted(ours - theirs))}".strip()
    their_text = f"{shared} {' '.join(sorted(theirs - ours))}".strip()
    pairs = [(our_text, their_text)]
    if shared:
        pairs += [(shared, our_text), (shared, their_text)]
    return round(100 * max(_similarity(left, right) for left, right in pairs))


def _words(text: str) -> set[str]:
    plain = text.encode("ascii", "ignore").decode()
    return set(_NO_WORD.sub(" ", plain).lower().split())


def _similarity(one: str, other: str) -> float:
    """Twice the length of the longest common subsequence over both lengths."""
    return 2 * _common_length(one, other) / (len(one) + len(other))


def _common_length(one: str, other: str) -> int:
    """Hyyrö's bit-parallel recurrence: a zero in `row` for each character of `one` in the subsequence."""
    places: dict[str, int] = {}
    for position, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << position
    full = (1 << len(one)) - 1
    row = full
    for letter in other:
        match = row & places.get(letter, 0)
        row = (row + match | row - match) & full
    return len(one) - row.bit_count()
