"""Problems of following rules exactly, and functions to be written."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from itertools import product

from tests.env_server.environments.code_sources.source import Source, ints, letters, line, lines, numbers


def _calculated(text: str) -> str:
    words = text.split()

    def value(place: int) -> tuple[int, int]:
        """The value of the expression that ends at `place`, and the place before it."""
        if words[place] not in "+-*":
            return int(words[place]), place - 1
        right, before = value(place - 1)
        left, before = value(before)
        return {"+": left + right, "-": left - right, "*": left * right}[words[place]], before

    return str(value(len(words) - 1)[0])


def _draw_expression(draw: random.Random) -> str:
    def words(depth: int) -> list[object]:
        if depth == 0 or draw.random() < 0.2:
            return [draw.randint(-20, 20)]
        return [*words(depth - 1), *words(depth - 1), draw.choice("+-*")]

    return lines(line(*words(draw.randint(1, 5))))


def _walked(text: str) -> str:
    place, direction = 0j, 1j
    visited = {place}
    for command in text.strip():
        if command == "F":
            place += direction
            visited.add(place)
        else:
            direction *= 1j if command == "L" else -1j
    return line(int(place.real), int(place.imag), len(visited))


def _lived(text: str) -> str:
    height, width, generations = ints(text.split("\n")[0])
    alive = {(i, j) for i, row in enumerate(text.split("\n")[1:]) for j, cell in enumerate(row) if cell == "#"}
    for _ in range(generations):
        around = {
            (i, j): sum((i + a, j + b) in alive for a, b in product((-1, 0, 1), repeat=2) if a or b)
            for i, j in product(range(height), range(width))
        }
        alive = {place for place, count in around.items() if count == 3 or (count == 2 and place in alive)}
    return "\n".join("".join("#" if (i, j) in alive else "." for j in range(width)) for i in range(height))


def _draw_life(draw: random.Random) -> str:
    height, width = draw.randint(1, 10), draw.randint(1, 10)
    rows = ["".join(draw.choice("#..") for _ in range(width)) for _ in range(height)]
    return lines(line(height, width, draw.randint(0, 8)), *rows)


def _hits(text: str) -> str:
    size, _, *pages = text.split()
    kept: OrderedDict[str, None] = OrderedDict()
    hits = 0
    for page in pages:
        hits += page in kept
        kept.pop(page, None)
        kept[page] = None
        if len(kept) > int(size):
            kept.popitem(last=False)
    return line(hits, len(pages) - hits)


def _draw_pages(draw: random.Random) -> str:
    count = draw.randint(1, 120)
    return lines(line(draw.randint(1, 8), count), line(*(letters(draw, 1, "abcdefghijkl") for _ in range(count))))


def _balances(text: str) -> str:
    rows = [row.split() for row in text.strip().split("\n")[1:]]
    names = sorted({name for row in rows for name in row[1:] if name.isalpha()})
    totals = dict.fromkeys(names, 0)
    refused = 0
    for kind, *rest in rows:
        if kind == "deposit":
            totals[rest[0]] += int(rest[1])
            continue
        amount = int(rest[-1])
        if totals[rest[0]] < amount:
            refused += 1
            continue
        totals[rest[0]] -= amount
        if kind == "transfer":
            totals[rest[1]] += amount
    return "\n".join([*(line(name, totals[name]) for name in names), line("refused", refused)])


def _draw_ledger(draw: random.Random) -> str:
    names = ("ada", "bob", "cleo", "dan")
    rows: list[str] = []
    for _ in range(draw.randint(1, 40)):
        kind = draw.choice(("deposit", "withdraw", "transfer"))
        people = draw.sample(names, 2 if kind == "transfer" else 1)
        rows.append(line(kind, *people, draw.randint(1, 100)))
    return lines(len(rows), *rows)


def _flat(text: str) -> str:
    def flat(value: object) -> list[object]:
        return [leaf for item in value for leaf in flat(item)] if isinstance(value, list) else [value]

    return json.dumps(flat(json.loads(text)[0]))


def _draw_nested(draw: random.Random) -> str:
    def nested(depth: int) -> object:
        if depth == 0 or draw.random() < 0.4:
            return draw.randint(-9, 9)
        return [nested(depth - 1) for _ in range(draw.randint(0, 4))]

    return json.dumps([[nested(4) for _ in range(draw.randint(0, 5))]])


def _rotated(text: str) -> str:
    row, steps = json.loads(text)
    for _ in range(steps % len(row) if row else 0):
        row = [row[-1], *row[:-1]]
    return json.dumps(row)


def _merged(text: str) -> str:
    return json.dumps(sorted(number for row in json.loads(text)[0] for number in row))


def _all_brackets(text: str) -> str:
    (count,) = json.loads(text)
    words = map("".join, product("()", repeat=2 * count))
    return json.dumps([word for word in words if _is_closed(word)])


def _is_closed(word: str) -> bool:
    while "()" in word:
        word = word.replace("()", "")
    return not word


SOURCES = (
    Source(
        name="postfix_calculator",
        kind="machines",
        statement="Work out an expression in postfix form: each of + - * stands behind its two operands.\n"
        "Input: one line of whole numbers and signs, single blanks between them (at most 63).\n"
        "Output: one number.",
        solution="""
stack = []
for word in input().split():
    if word in ("+", "-", "*"):
        b, a = stack.pop(), stack.pop()
        stack.append(a + b if word == "+" else a - b if word == "-" else a * b)
    else:
        stack.append(int(word))
print(stack[0])
""",
        solve=_calculated,
        examples=("3 4 + 2 *\n", "5 -2 -\n"),
        draw=_draw_expression,
    ),
    Source(
        name="robot",
        kind="machines",
        statement="A robot starts at (0, 0) and looks north (y grows). F goes one step forward, L and R turn it on "
        "the spot.\n"
        "Input: one line of commands F, L and R (1 to 300).\n"
        "Output: the last x and y and the number of different places it stood on, the start included.",
        solution="""
x = y = 0
dx, dy = 0, 1
seen = {(0, 0)}
for c in input().strip():
    if c == "F":
        x, y = x + dx, y + dy
        seen.add((x, y))
    elif c == "L":
        dx, dy = -dy, dx
    else:
        dx, dy = dy, -dx
print(x, y, len(seen))
""",
        solve=_walked,
        examples=("FFRF\n", "L\n"),
        edges=("FRFRFRFRF\n",),
        draw=lambda draw: lines(letters(draw, draw.randint(1, 300), "FFLR")),
    ),
    Source(
        name="game_of_life",
        kind="machines",
        statement="In each generation a living cell (#) with two or three living neighbours of eight stays alive, a "
        "dead one (.) with exactly three comes alive, all others are dead. Outside the grid all is dead.\n"
        "Input: a line with h, w (1 to 10) and the number g of generations (0 to 8), then h rows of w "
        "cells.\n"
        "Output: the grid after g generations.",
        solution="""
h, w, g = map(int, input().split())
grid = [input() for _ in range(h)]
for _ in range(g):
    new = []
    for i in range(h):
        row = ""
        for j in range(w):
            n = sum(grid[a][b] == "#" for a in range(max(0, i - 1), min(h, i + 2))
                    for b in range(max(0, j - 1), min(w, j + 2)) if (a, b) != (i, j))
            row += "#" if n == 3 or (n == 2 and grid[i][j] == "#") else "."
        new.append(row)
    grid = new
print("\\n".join(grid))
""",
        solve=_lived,
        examples=(lines("3 3 1", "...", "###", "..."), lines("1 1 0", "#")),
        draw=_draw_life,
    ),
    Source(
        name="cache_hits",
        kind="machines",
        statement="A cache keeps k pages. A page that is asked for and not in it is put in; if it is full, the page "
        "that was not asked for the longest goes out.\n"
        "Input: a line with k (1 to 8) and n (1 to 120), then a line of the n pages asked for, each a "
        "word.\n"
        "Output: how often the page was in the cache, and how often not.",
        solution="""
k, n = map(int, input().split())
last, hits = {}, 0
for time, page in enumerate(input().split()):
    if page in last:
        hits += 1
    elif len(last) == k:
        del last[min(last, key=last.get)]
    last[page] = time
print(hits, n - hits)
""",
        solve=_hits,
        examples=(lines("2 5", "a b a c b"), lines("1 3", "a a a")),
        draw=_draw_pages,
    ),
    Source(
        name="bank",
        kind="machines",
        statement="Keep accounts, all 0 at first. deposit NAME AMOUNT adds; withdraw NAME AMOUNT takes; transfer "
        "FROM TO AMOUNT moves. What would make an account negative is refused and changes nothing.\n"
        "Input: a line with n (1 to 40), then n such lines; names are lower-case letters, amounts 1 to "
        "100.\n"
        "Output: a line NAME BALANCE for every name that occurs, in alphabetical order, then a line "
        "refused COUNT.",
        solution="""
from collections import defaultdict
money, refused = defaultdict(int), 0
for _ in range(int(input())):
    kind, *names, amount = input().split()
    amount = int(amount)
    for name in names:
        money[name]
    if kind == "deposit":
        money[names[0]] += amount
    elif money[names[0]] < amount:
        refused += 1
    else:
        money[names[0]] -= amount
        if kind == "transfer":
            money[names[1]] += amount
for name in sorted(money):
    print(name, money[name])
print("refused", refused)
""",
        solve=_balances,
        examples=(lines(3, "deposit ada 10", "transfer ada bob 4", "withdraw bob 5"), lines(1, "withdraw bob 1")),
        draw=_draw_ledger,
    ),
    Source(
        name="flatten",
        kind="functions",
        statement="Write a function flatten(items) that returns the numbers of a list of numbers and lists, which "
        "hold numbers and lists again, as one flat list in the same order.",
        solution="""
def flatten(items):
    out = []
    for item in items:
        if isinstance(item, list):
            out.extend(flatten(item))
        else:
            out.append(item)
    return out
""",
        solve=_flat,
        examples=("[[1, [2, [3]], []]]", "[[]]"),
        draw=_draw_nested,
        function="flatten",
    ),
    Source(
        name="rotate",
        kind="functions",
        statement="Write a function rotate(items, k) that returns the list turned k places to the right: the last "
        "item comes to the front, k times. k may be larger than the list, which may be empty.",
        solution="""
def rotate(items, k):
    if not items:
        return []
    k %= len(items)
    return items[len(items) - k:] + items[:len(items) - k]
""",
        solve=_rotated,
        examples=("[[1, 2, 3, 4], 1]", "[[], 3]"),
        draw=lambda draw: json.dumps([numbers(draw, draw.randint(1, 12), 0, 9), draw.randint(0, 40)]),
        function="rotate",
    ),
    Source(
        name="merge_sorted",
        kind="functions",
        statement="Write a class Solution with a method merge(self, rows) that takes a list of sorted lists of "
        "numbers and returns all their numbers as one sorted list.",
        solution="""
import heapq
class Solution:
    def merge(self, rows):
        return list(heapq.merge(*rows))
""",
        solve=_merged,
        examples=("[[[1, 4], [2, 3], []]]", "[[]]"),
        draw=lambda draw: json.dumps(
            [[sorted(numbers(draw, draw.randint(0, 8), -50, 50)) for _ in range(draw.randint(1, 6))]]
        ),
        function="merge",
    ),
    Source(
        name="all_brackets",
        kind="functions",
        statement="Write a function brackets(n) that returns all rightly closed words of n pairs of round brackets, "
        "1 <= n <= 8, in alphabetical order, ( before ).",
        solution="""
def brackets(n):
    out = []
    def grow(word, opened, closed):
        if closed == n:
            out.append(word)
            return
        if opened < n:
            grow(word + "(", opened + 1, closed)
        if closed < opened:
            grow(word + ")", opened, closed + 1)
    grow("", 0, 0)
    return out
""",
        solve=_all_brackets,
        examples=("[2]", "[1]"),
        edges=tuple(f"[{count}]" for count in range(3, 9)),
        draw=lambda draw: "[1]",  # there are no more inputs
        function="brackets",
    ),
)
