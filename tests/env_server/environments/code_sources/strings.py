"""Problems about text."""

from __future__ import annotations

import itertools
import random
import re

from tests.env_server.environments.code_sources.source import Source, letters, line, lines

_BRACKETS = "()[]{}"


def _run_lengths(text: str) -> str:
    return "".join(f"{match[0][0]}{len(match[0])}" for match in re.finditer(r"(.)\1*", text.strip()))


def _shifted(text: str) -> str:
    return line(*("".join(chr((ord(letter) - 97 + len(word)) % 26 + 97) for letter in word) for word in text.split()))


def _palindrome(text: str) -> str:
    word = text.strip()
    pairs = itertools.combinations(range(len(word) + 1), 2)
    return str(max(end - start for start, end in pairs if word[start:end] == word[start:end][::-1]))


def _anagrams(text: str) -> str:
    words = text.split()[1:]
    groups: list[list[str]] = []
    for word in words:
        for group in groups:
            if all(group[0].count(letter) == word.count(letter) for letter in set(group[0] + word)):
                group.append(word)
                break
        else:
            groups.append([word])
    return line(len(groups), max(map(len, groups)))


def _draw_anagrams(draw: random.Random) -> str:
    words = [letters(draw, draw.randint(1, 4), "abc") for _ in range(draw.randint(2, 60))]
    return lines(len(words), *words)


def _depth(text: str) -> str:
    word = text.strip()
    while word != (shorter := re.sub(r"\(\)|\[\]|\{\}", "", word)):
        word = shorter
    return "-1" if word else str(_nesting(text.strip()))


def _nesting(word: str) -> int:
    opened = itertools.accumulate(1 if letter in "([{" else -1 for letter in word)
    return max(opened, default=0)


def _draw_brackets(draw: random.Random) -> str:
    word = ""
    opened: list[str] = []
    for _ in range(draw.randint(4, 40)):
        if opened and draw.random() < 0.5:
            word += opened.pop()
        else:
            kind = draw.randrange(3)
            word += _BRACKETS[2 * kind]
            opened.append(_BRACKETS[2 * kind + 1])
    word += "".join(reversed(opened))
    if draw.random() < 0.3:
        at = draw.randrange(len(word))
        word = word[:at] + draw.choice(_BRACKETS) + word[at + 1 :]
    return lines(word)


def _distance(text: str) -> str:
    first, second = text.split("\n")[:2]
    # Breadth first over (place in the one, place in the other): an insertion, a deletion or a change costs 1.
    reached, distance = {(0, 0)}, 0
    while True:
        stack = list(reached)
        while stack:
            i, j = stack.pop()
            if i < len(first) and j < len(second) and first[i] == second[j] and (i + 1, j + 1) not in reached:
                reached.add((i + 1, j + 1))
                stack.append((i + 1, j + 1))
        if (len(first), len(second)) in reached:
            return str(distance)
        steps = ((i + a, j + b) for i, j in reached for a, b in ((1, 0), (0, 1), (1, 1)))
        reached |= {(i, j) for i, j in steps if i <= len(first) and j <= len(second)}
        distance += 1


def _draw_pair(draw: random.Random) -> str:
    first = letters(draw, draw.randint(1, 30), "abcde")
    kept = [letter for letter in first if draw.random() < 0.8]
    for _ in range(draw.randint(0, 5)):
        kept.insert(draw.randint(0, len(kept)), draw.choice("abcde"))
    return lines(first, "".join(kept) or "a")


_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def _to_roman(number: int) -> str:
    digits = (("", "M", "MM", "MMM"), ("", "C", "CC", "CCC", "CD", "D", "DC", "DCC", "DCCC", "CM"),
              ("", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"),
              ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"))  # fmt: skip
    return "".join(names[number // power % 10] for names, power in zip(digits, (1000, 100, 10, 1), strict=True))


_VALUES = {_to_roman(number): number for number in range(1, 4000)}


def _roman_sum(text: str) -> str:
    return _to_roman(sum(_VALUES[word] for word in text.split()))


def _draw_romans(draw: random.Random) -> str:
    count = draw.randint(1, 8)
    return lines(line(*(_to_roman(draw.randint(1, 3999 // count)) for _ in range(count))))


def _wrapped(text: str) -> str:
    width, words = int(text.split()[0]), text.split()[1:]
    rows = [words[0]]
    for word in words[1:]:
        if len(rows[-1]) + 1 + len(word) <= width:
            rows[-1] += " " + word
        else:
            rows.append(word)
    return "\n".join(rows)


def _draw_words(draw: random.Random) -> str:
    words = [letters(draw, draw.randint(1, 10)) for _ in range(draw.randint(1, 40))]
    return lines(draw.randint(10, 30), line(*words))


def _distinct(text: str) -> str:
    word = text.strip()
    return str(len({word[start:end] for start in range(len(word)) for end in range(start + 1, len(word) + 1)}))


SOURCES = (
    Source(
        name="run_lengths",
        kind="strings",
        statement="Shorten a word of lower-case letters: write each run of equal letters as the letter and its "
        "length.\n"
        "Input: one line, the word (1 to 200 letters).\n"
        "Output: one line.",
        solution="""
word = input().strip()
parts = []
start = 0
for i in range(1, len(word) + 1):
    if i == len(word) or word[i] != word[start]:
        parts.append(word[start] + str(i - start))
        start = i
print("".join(parts))
""",
        solve=_run_lengths,
        examples=("aaabcc\n", "z\n"),
        edges=("a" * 200 + "\n",),
        draw=lambda draw: lines(letters(draw, draw.randint(1, 200), draw.choice(("ab", "abc", "abcdefgh")))),
    ),
    Source(
        name="shift_by_length",
        kind="strings",
        statement="Shift every letter of a word forward in the alphabet by the word's length, from z on to a.\n"
        "Input: one line of 1 to 50 words of lower-case letters, single blanks between them.\n"
        "Output: the shifted words in one line, single blanks between them.",
        solution="""
import string
result = []
for word in input().split():
    n = len(word) % 26
    table = str.maketrans(string.ascii_lowercase, string.ascii_lowercase[n:] + string.ascii_lowercase[:n])
    result.append(word.translate(table))
print(" ".join(result))
""",
        solve=_shifted,
        examples=("abc xyz z\n", "hello\n"),
        edges=(letters(random.Random(0), 60) + "\n",),
        draw=lambda draw: lines(line(*(letters(draw, draw.randint(1, 30)) for _ in range(draw.randint(1, 50))))),
    ),
    Source(
        name="longest_palindrome",
        kind="strings",
        statement="How long is the longest part of a word (letters that follow each other) that reads the same "
        "backwards?\n"
        "Input: one line, the word (1 to 120 lower-case letters).\n"
        "Output: one number.",
        solution="""
s = input().strip()
best = 0
for center in range(len(s)):
    for left, right in ((center, center), (center, center + 1)):
        while left >= 0 and right < len(s) and s[left] == s[right]:
            left -= 1
            right += 1
        best = max(best, right - left - 1)
print(best)
""",
        solve=_palindrome,
        examples=("cabbad\n", "abc\n"),
        edges=("a\n", "aaaaaaaa\n"),
        draw=lambda draw: lines(letters(draw, draw.randint(2, 120), draw.choice(("ab", "abc", "abcd")))),
    ),
    Source(
        name="anagram_groups",
        kind="strings",
        statement="Words are of one group if they have the same letters, each equally often.\n"
        "Input: a line with n (1 to 60), then n lines with a word of lower-case letters each; words may "
        "repeat.\n"
        "Output: the number of groups and the number of words in the largest group, with a blank between.",
        solution="""
from collections import Counter
n = int(input())
groups = Counter("".join(sorted(input().strip())) for _ in range(n))
print(len(groups), max(groups.values()))
""",
        solve=_anagrams,
        examples=(lines(5, "tea", "eat", "tan", "ate", "nat"), lines(1, "a")),
        draw=lambda draw: lines(
            n := draw.randint(2, 60), *(letters(draw, draw.randint(1, 4), "abc") for _ in range(n))
        ),
    ),
    Source(
        name="bracket_depth",
        kind="strings",
        statement="A word consists of the brackets ()[]{}. If every bracket is closed by its own kind in the right "
        "order, how deep is the deepest nesting?\n"
        "Input: one line, the word (1 to 100 brackets).\n"
        "Output: the depth, or -1 if the word is not closed rightly.",
        solution="""
pairs = {")": "(", "]": "[", "}": "{"}
stack = []
deepest = 0
ok = True
for c in input().strip():
    if c in pairs:
        if not stack or stack.pop() != pairs[c]:
            ok = False
            break
    else:
        stack.append(c)
        deepest = max(deepest, len(stack))
print(deepest if ok and not stack else -1)
""",
        solve=_depth,
        examples=("([]{()})\n", "([)]\n"),
        edges=("(\n", ")\n", "[[[[[[]]]]]]\n"),
        draw=_draw_brackets,
    ),
    Source(
        name="edit_distance",
        kind="strings",
        statement="How many single-letter insertions, deletions and replacements are needed at least to turn one "
        "word into another?\n"
        "Input: two lines, a word of lower-case letters each (1 to 60 letters).\n"
        "Output: one number.",
        solution="""
a = input().strip()
b = input().strip()
row = list(range(len(b) + 1))
for i, x in enumerate(a, 1):
    new = [i]
    for j, y in enumerate(b, 1):
        new.append(min(row[j] + 1, new[j - 1] + 1, row[j - 1] + (x != y)))
    row = new
print(row[-1])
""",
        solve=_distance,
        examples=(lines("kitten", "sitting"), lines("a", "a")),
        draw=_draw_pair,
    ),
    Source(
        name="roman_sum",
        kind="strings",
        statement="Add Roman numbers (1 to 3999, in the usual form with IV, IX, XL, XC, CD, CM).\n"
        "Input: one line of numbers, single blanks between them; the sum is at most 3999.\n"
        "Output: the sum as a Roman number.",
        solution="""
VALUE = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
STEPS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
         (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
total = 0
for word in input().split():
    for here, after in zip(word, word[1:] + "I"):
        total += -VALUE[here] if VALUE[here] < VALUE[after] else VALUE[here]
out = ""
for value, text in STEPS:
    while total >= value:
        out += text
        total -= value
print(out)
""",
        solve=_roman_sum,
        examples=("IV V\n", "MCMXCIV VI\n"),
        edges=("MMMCMXCIX\n",),
        draw=_draw_romans,
    ),
    Source(
        name="wrap_text",
        kind="strings",
        statement="Break a text into lines of at most w characters, as many words in each line as fit, in order, "
        "single blanks between them.\n"
        "Input: a line with w (10 to 80), then a line of words, none longer than w.\n"
        "Output: the lines.",
        solution="""
width = int(input())
row = ""
for word in input().split():
    if row and len(row) + 1 + len(word) > width:
        print(row)
        row = word
    else:
        row = row + " " + word if row else word
print(row)
""",
        solve=_wrapped,
        examples=("10\nthe cat sat on the mat\n", "12\none\n"),
        draw=_draw_words,
    ),
    Source(
        name="distinct_parts",
        kind="strings",
        statement="How many different non-empty parts (letters that follow each other) does a word have?\n"
        "Input: one line, the word (1 to 150 lower-case letters).\n"
        "Output: one number.",
        solution="""
s = input().strip()
suffixes = sorted(s[i:] for i in range(len(s)))
total = len(s) * (len(s) + 1) // 2
for a, b in zip(suffixes, suffixes[1:]):
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    total -= common
print(total)
""",
        solve=_distinct,
        examples=("aba\n", "aaaa\n"),
        draw=lambda draw: lines(letters(draw, draw.randint(1, 150), draw.choice(("a", "ab", "abcd")))),
    ),
)
