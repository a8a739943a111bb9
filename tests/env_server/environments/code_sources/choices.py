"""Problems of choosing the best of many: dynamic programming."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations, product

from tests.env_server.environments.code_sources.source import Source, ints, letters, line, lines, numbers

_MODULUS = 1_000_000_007


def _fewest_coins(text: str) -> str:
    _, target, *coins = ints(text)
    reached, count = {0}, 0
    while target not in reached:
        wider = reached | {total + coin for total in reached for coin in coins if total + coin <= target}
        if wider == reached:
            return "-1"
        reached, count = wider, count + 1
    return str(count)


def _draw_coins(draw: random.Random) -> str:
    coins = sorted(set(numbers(draw, draw.randint(1, 6), 2, 60)))
    return lines(line(len(coins), draw.randint(1, 300)), line(*coins))


def _rising(text: str) -> str:
    row = ints(text)[1:]

    @cache
    def longest_from(place: int) -> int:
        return 1 + max((longest_from(j) for j in range(place + 1, len(row)) if row[j] > row[place]), default=0)

    return str(max(map(longest_from, range(len(row)))))


def _draw_rising(draw: random.Random) -> str:
    count = draw.randint(1, 120)
    return lines(count, line(*numbers(draw, count, 0, draw.choice((9, 500)))))


def _packed(text: str) -> str:
    _, capacity, *rest = ints(text)
    items = list(zip(rest[::2], rest[1::2], strict=True))
    chosen = (picked for size in range(len(items) + 1) for picked in combinations(items, size))
    return str(max(sum(v for _, v in picked) for picked in chosen if sum(w for w, _ in picked) <= capacity))


def _draw_items(draw: random.Random) -> str:
    count = draw.randint(1, 12)
    return lines(
        line(count, draw.randint(1, 100)), *(line(draw.randint(1, 40), draw.randint(1, 50)) for _ in range(count))
    )


def _paths(text: str) -> str:
    height, width = ints(text.split("\n")[0])
    rows = text.split("\n")[1 : height + 1]

    @cache
    def ways(i: int, j: int) -> int:
        if i >= height or j >= width or rows[i][j] == "#":
            return 0
        return 1 if (i, j) == (height - 1, width - 1) else ways(i + 1, j) + ways(i, j + 1)

    return str(ways(0, 0) % _MODULUS)


def _draw_grid(draw: random.Random) -> str:
    height, width = draw.randint(1, 20), draw.randint(1, 20)
    density = draw.choice((0.0, 0.1, 0.25))
    rows = ["".join("#" if draw.random() < density else "." for _ in range(width)) for _ in range(height)]
    return lines(line(height, width), *rows)


def _common(text: str) -> str:
    first, second = text.split("\n")[:2]

    @cache
    def longest(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return 0
        if first[i] == second[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    return str(longest(0, 0))


def _climbs(text: str) -> str:
    top, _, *broken = ints(text)
    counts = {0: 1}
    for step in range(1, top + 1):
        counts[step] = 0 if step in broken else sum(counts.get(step - size, 0) for size in (1, 2, 3))
    return str(counts[top] % _MODULUS)


def _draw_stairs(draw: random.Random) -> str:
    top = draw.randint(1, 60)
    broken = sorted(draw.sample(range(1, top), min(top - 1, draw.randint(0, 6)))) if top > 1 else []
    return lines(line(top, len(broken)), line(*broken))


def _rod(text: str) -> str:
    length, *prices = ints(text)

    @cache
    def best(rest: int) -> int:
        return max((prices[piece - 1] + best(rest - piece) for piece in range(1, rest + 1)), default=0)

    return str(best(length))


def _draw_rod(draw: random.Random) -> str:
    length = draw.randint(1, 40)
    return lines(length, line(*sorted(numbers(draw, length, 1, 100))))


def _subsets(text: str) -> str:
    _, target, *row = ints(text)
    return str(sum(sum(x for x, is_in in zip(row, chosen, strict=True) if is_in) == target
                   for chosen in product((False, True), repeat=len(row))))  # fmt: skip


def _draw_subset(draw: random.Random) -> str:
    count = draw.randint(1, 13)
    return lines(line(count, draw.randint(0, 40)), line(*numbers(draw, count, 1, 15)))


SOURCES = (
    Source(
        name="fewest_coins",
        kind="choices",
        statement="How many coins are needed at least to pay exactly s? There are as many coins of each kind as one "
        "likes.\n"
        "Input: a line with n (1 to 6) and s (1 to 300), then a line of the n different values (2 to 60).\n"
        "Output: the number of coins, or -1 if it cannot be paid.",
        solution="""
n, s = map(int, input().split())
coins = list(map(int, input().split()))
best = [0] + [None] * s
for total in range(1, s + 1):
    options = [best[total - c] for c in coins if c <= total and best[total - c] is not None]
    if options:
        best[total] = min(options) + 1
print(-1 if best[s] is None else best[s])
""",
        solve=_fewest_coins,
        examples=(lines("3 11", "2 5 7"), lines("1 3", "2")),
        draw=_draw_coins,
    ),
    Source(
        name="longest_rising",
        kind="choices",
        statement="How many numbers of a row can be kept at most, in their order, so that each kept one is larger "
        "than the kept one before it?\n"
        "Input: a line with n (1 to 120), then a line of n whole numbers.\n"
        "Output: one number.",
        solution="""
from bisect import bisect_left
input()
tails = []
for x in map(int, input().split()):
    i = bisect_left(tails, x)
    tails[i:i + 1] = [x]
print(len(tails))
""",
        solve=_rising,
        examples=(lines(6, "5 1 4 2 3 3"), lines(3, "3 2 1")),
        draw=_draw_rising,
    ),
    Source(
        name="pack",
        kind="choices",
        statement="Each thing can be packed once or not at all. What value can be packed at most if the weights may "
        "add up to w?\n"
        "Input: a line with n (1 to 12) and w (1 to 100), then n lines with the weight and the value of a "
        "thing (1 to 50).\n"
        "Output: the largest value.",
        solution="""
n, w = map(int, input().split())
best = [0] * (w + 1)
for _ in range(n):
    weight, value = map(int, input().split())
    for room in range(w, weight - 1, -1):
        best[room] = max(best[room], best[room - weight] + value)
print(best[w])
""",
        solve=_packed,
        examples=(lines("3 10", "6 30", "5 20", "5 20"), lines("1 1", "2 9")),
        draw=_draw_items,
    ),
    Source(
        name="grid_paths",
        kind="choices",
        statement="In how many ways can one walk from the top left to the bottom right cell of a grid, only right "
        "and down, over free cells (.), not over walls (#)? Give the number modulo 1000000007.\n"
        "Input: a line with h and w (1 to 20), then h rows of w cells.\n"
        "Output: one number.",
        solution="""
h, w = map(int, input().split())
ways = [0] * w
ways[0] = 1
for _ in range(h):
    row = input()
    for j in range(w):
        if row[j] == "#":
            ways[j] = 0
        elif j:
            ways[j] = (ways[j] + ways[j - 1]) % 1000000007
print(ways[-1])
""",
        solve=_paths,
        examples=(lines("3 3", "...", ".#.", "..."), lines("1 1", "#")),
        draw=_draw_grid,
    ),
    Source(
        name="common_letters",
        kind="choices",
        statement="How many letters can be kept at most of each of two words, in their order, so that what is kept "
        "is the same?\n"
        "Input: two lines, a word of lower-case letters each (1 to 80 letters).\n"
        "Output: one number.",
        solution="""
a, b = input().strip(), input().strip()
row = [0] * (len(b) + 1)
for x in a:
    before = 0
    for j, y in enumerate(b, 1):
        before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
print(row[-1])
""",
        solve=_common,
        examples=(lines("abcde", "badce"), lines("a", "b")),
        draw=lambda draw: lines(letters(draw, draw.randint(1, 80), "abcd"), letters(draw, draw.randint(1, 80), "abcd")),
    ),
    Source(
        name="broken_stairs",
        kind="choices",
        statement="A stair has n steps; with each stride one takes 1, 2 or 3 of them, but never treads on a broken "
        "one. In how many ways can step n be reached from the ground? Give the number modulo 1000000007.\n"
        "Input: a line with n (1 to 60) and the number m of broken steps, then a line of the m broken "
        "steps (empty if m is 0), all below n.\n"
        "Output: one number.",
        solution="""
import sys
n, m, *broken = map(int, sys.stdin.read().split())
broken = set(broken)
a, b, c = 0, 0, 1
for step in range(1, n + 1):
    a, b, c = b, c, 0 if step in broken else (a + b + c) % 1000000007
print(c)
""",
        solve=_climbs,
        examples=(lines("4 1", "2"), lines("3 0", "")),
        edges=(lines("5 3", "1 2 3"),),
        draw=_draw_stairs,
    ),
    Source(
        name="cut_the_rod",
        kind="choices",
        statement="A rod of length n is cut into pieces of whole lengths; a piece of length i is worth p_i. What is "
        "the largest worth of all pieces together? The rod may stay whole.\n"
        "Input: a line with n (1 to 40), then a line with p_1 to p_n.\n"
        "Output: one number.",
        solution="""
n = int(input())
price = [0] + list(map(int, input().split()))
best = [0] * (n + 1)
for length in range(1, n + 1):
    best[length] = max(price[piece] + best[length - piece] for piece in range(1, length + 1))
print(best[n])
""",
        solve=_rod,
        examples=(lines(4, "1 5 8 9"), lines(1, "3")),
        draw=_draw_rod,
    ),
    Source(
        name="subsets_with_sum",
        kind="choices",
        statement="How many ways are there to choose some of the numbers of a row, perhaps none, so that they add "
        "up to s? Equal numbers at different places count as different.\n"
        "Input: a line with n (1 to 13) and s (0 to 40), then a line of n numbers from 1 to 15.\n"
        "Output: one number.",
        solution="""
n, s = map(int, input().split())
ways = [1] + [0] * s
for x in map(int, input().split()):
    for total in range(s, x - 1, -1):
        ways[total] += ways[total - x]
print(ways[s])
""",
        solve=_subsets,
        examples=(lines("4 5", "1 2 3 5"), lines("2 0", "1 1")),
        draw=_draw_subset,
    ),
)
