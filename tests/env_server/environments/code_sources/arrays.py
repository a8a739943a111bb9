"""Problems about rows of numbers."""

from __future__ import annotations

import random
from itertools import combinations

from tests.env_server.environments.code_sources.source import Source, ints, line, lines, numbers


def _row(draw: random.Random, most: int, low: int, high: int) -> str:
    count = draw.randint(1, most)
    return lines(count, line(*numbers(draw, count, low, high)))


def _row_and(draw: random.Random, most: int, low: int, high: int, extra: tuple[int, int]) -> str:
    count = draw.randint(1, most)
    return lines(line(count, draw.randint(*extra)), line(*numbers(draw, count, low, high)))


def _best_part(text: str) -> str:
    row = ints(text)[1:]
    return str(max(sum(row[start:end]) for start, end in combinations(range(len(row) + 1), 2)))


def _pairs(text: str) -> str:
    _, target, *row = ints(text)
    return str(sum(a + b == target for a, b in combinations(row, 2)))


def _inversions(text: str) -> str:
    return str(sum(a > b for a, b in combinations(ints(text)[1:], 2)))


def _window_maxima(text: str) -> str:
    _, width, *row = ints(text)
    return line(*(max(row[start : start + width]) for start in range(len(row) - width + 1)))


def _draw_window(draw: random.Random) -> str:
    count = draw.randint(1, 200)
    return lines(line(count, draw.randint(1, count)), line(*numbers(draw, count, -1000, 1000)))


def _covered(text: str) -> str:
    values = ints(text)[1:]
    points: set[int] = set()
    for start, end in zip(values[::2], values[1::2], strict=True):
        points.update(range(start, end))
    return str(len(points))


def _draw_intervals(draw: random.Random) -> str:
    rows = [(start := draw.randint(-500, 500), start + draw.randint(1, 60)) for _ in range(draw.randint(1, 40))]
    return lines(len(rows), *(line(*row) for row in rows))


def _spiral(text: str) -> str:
    height, width, *cells = ints(text)
    rows = [cells[start * width : (start + 1) * width] for start in range(height)]
    seen: list[int] = []
    while rows:
        seen += rows[0]
        rows = [list(row) for row in zip(*rows[1:], strict=True)][::-1]
    return line(*seen)


def _draw_matrix(draw: random.Random) -> str:
    height, width = draw.randint(1, 12), draw.randint(1, 12)
    return lines(line(height, width), *(line(*numbers(draw, width, -99, 99)) for _ in range(height)))


def _next_greater(text: str) -> str:
    row = ints(text)[1:]
    return line(*(next((x for x in row[i + 1 :] if x > row[i]), -1) for i in range(len(row))))


def _medians(text: str) -> str:
    row = ints(text)[1:]
    return line(*(sorted(row[:end])[(end - 1) // 2] for end in range(1, len(row) + 1)))


def _water(text: str) -> str:
    row = ints(text)[1:]
    return str(sum(min(max(row[: i + 1]), max(row[i:])) - height for i, height in enumerate(row)))


def _divisible_parts(text: str) -> str:
    _, divisor, *row = ints(text)
    return str(sum(sum(row[start:end]) % divisor == 0 for start, end in combinations(range(len(row) + 1), 2)))


def _range_sums(text: str) -> str:
    count, num_queries, *values = ints(text)
    row, queries = values[:count], values[count:]
    return "\n".join(str(sum(row[queries[2 * i] - 1 : queries[2 * i + 1]])) for i in range(num_queries))


def _draw_queries(draw: random.Random) -> str:
    count, num_queries = draw.randint(1, 60), draw.randint(1, 30)
    queries = [line(*sorted(numbers(draw, 2, 1, count))) for _ in range(num_queries)]
    return lines(line(count, num_queries), line(*numbers(draw, count, -(10**9), 10**9)), *queries)


SOURCES = (
    Source(
        name="best_part",
        kind="arrays",
        statement="What is the largest sum of numbers that follow each other in a row? At least one number must be "
        "taken.\n"
        "Input: a line with n (1 to 100), then a line of n whole numbers from -1000 to 1000.\n"
        "Output: one number.",
        solution="""
input()
best = here = None
for x in map(int, input().split()):
    here = x if here is None or here < 0 else here + x
    best = here if best is None else max(best, here)
print(best)
""",
        solve=_best_part,
        examples=(lines(6, "2 -3 4 -1 2 -5"), lines(2, "-3 -2")),
        draw=lambda draw: _row(draw, 100, -1000, 900),
    ),
    Source(
        name="pairs_with_sum",
        kind="arrays",
        statement="How many pairs of places i < j in a row hold numbers with the sum s?\n"
        "Input: a line with n (1 to 200) and s, then a line of n whole numbers.\n"
        "Output: one number.",
        solution="""
from collections import Counter
n, s = map(int, input().split())
seen, total = Counter(), 0
for x in map(int, input().split()):
    total += seen[s - x]
    seen[x] += 1
print(total)
""",
        solve=_pairs,
        examples=(lines("5 6", "1 5 3 3 3"), lines("1 2", "1")),
        draw=lambda draw: _row_and(draw, 200, -20, 20, (-30, 30)),
    ),
    Source(
        name="inversions",
        kind="arrays",
        statement="How many pairs of places i < j in a row hold numbers a and b with a > b?\n"
        "Input: a line with n (1 to 300), then a line of n whole numbers.\n"
        "Output: one number.",
        solution="""
from bisect import bisect_right, insort
input()
seen, total = [], 0
for x in map(int, input().split()):
    total += len(seen) - bisect_right(seen, x)
    insort(seen, x)
print(total)
""",
        solve=_inversions,
        examples=(lines(4, "3 1 2 2"), lines(3, "1 2 3")),
        edges=(lines(300, line(*range(300, 0, -1))),),
        draw=lambda draw: _row(draw, 250, 0, draw.choice((5, 1000))),
    ),
    Source(
        name="window_maxima",
        kind="arrays",
        statement="Print the largest number of every window of k numbers that follow each other in a row.\n"
        "Input: a line with n and k (1 <= k <= n <= 200), then a line of n whole numbers.\n"
        "Output: one line with the n - k + 1 largest numbers.",
        solution="""
from collections import deque
n, k = map(int, input().split())
row = list(map(int, input().split()))
window, out = deque(), []
for i, x in enumerate(row):
    while window and row[window[-1]] <= x:
        window.pop()
    window.append(i)
    if window[0] <= i - k:
        window.popleft()
    if i >= k - 1:
        out.append(row[window[0]])
print(*out)
""",
        solve=_window_maxima,
        examples=(lines("6 3", "1 3 2 5 1 1"), lines("1 1", "-7")),
        draw=_draw_window,
    ),
    Source(
        name="covered_length",
        kind="arrays",
        statement="Intervals lie on a line and may overlap. How long is the part of the line that they cover "
        "together?\n"
        "Input: a line with n (1 to 40), then n lines with a start and an end each, start < end, whole "
        "numbers from -500 to 560.\n"
        "Output: one number.",
        solution="""
n = int(input())
total, reach = 0, None
for a, b in sorted(tuple(map(int, input().split())) for _ in range(n)):
    if reach is None or a > reach:
        total += b - a
        reach = b
    elif b > reach:
        total += b - reach
        reach = b
print(total)
""",
        solve=_covered,
        examples=(lines(3, "1 4", "2 6", "8 9"), lines(1, "-3 3")),
        draw=_draw_intervals,
    ),
    Source(
        name="spiral",
        kind="arrays",
        statement="Read a table in a spiral: from the top left to the right, down, to the left, up, and so on "
        "inwards.\n"
        "Input: a line with h and w (1 to 12), then h lines of w whole numbers.\n"
        "Output: one line with the numbers in this order.",
        solution="""
h, w = map(int, input().split())
table = [input().split() for _ in range(h)]
top, bottom, left, right = 0, h - 1, 0, w - 1
out = []
while top <= bottom and left <= right:
    out += table[top][left:right + 1]
    out += [table[i][right] for i in range(top + 1, bottom + 1)]
    if top < bottom and left < right:
        out += [table[bottom][j] for j in range(right - 1, left - 1, -1)]
        out += [table[i][left] for i in range(bottom - 1, top, -1)]
    top, bottom, left, right = top + 1, bottom - 1, left + 1, right - 1
print(*out)
""",
        solve=_spiral,
        examples=(lines("3 3", "1 2 3", "4 5 6", "7 8 9"), lines("1 4", "1 2 3 4")),
        edges=(lines("4 1", "1", "2", "3", "4"),),
        draw=_draw_matrix,
    ),
    Source(
        name="next_greater",
        kind="arrays",
        statement="Print for each number of a row the first larger number to its right, or -1 if there is none.\n"
        "Input: a line with n (1 to 200), then a line of n numbers from 0 to 1000.\n"
        "Output: one line of n numbers.",
        solution="""
n = int(input())
row = list(map(int, input().split()))
out, stack = [-1] * n, []
for i, x in enumerate(row):
    while stack and row[stack[-1]] < x:
        out[stack.pop()] = x
    stack.append(i)
print(*out)
""",
        solve=_next_greater,
        examples=(lines(5, "2 1 5 3 4"), lines(2, "7 7")),
        draw=lambda draw: _row(draw, 200, 0, draw.choice((5, 1000))),
    ),
    Source(
        name="running_median",
        kind="arrays",
        statement="After each number of a row print the median of the numbers so far: the middle one in order of "
        "size, the smaller of the two middle ones if their count is even.\n"
        "Input: a line with n (1 to 150), then a line of n whole numbers.\n"
        "Output: one line of n medians.",
        solution="""
import heapq
input()
low, high, out = [], [], []
for x in map(int, input().split()):
    heapq.heappush(low, -heapq.heappushpop(high, x))
    if len(low) > len(high) + 1:
        heapq.heappush(high, -heapq.heappop(low))
    out.append(-low[0])
print(*out)
""",
        solve=_medians,
        examples=(lines(4, "5 1 4 2"), lines(1, "9")),
        draw=lambda draw: _row(draw, 150, -100, 100),
    ),
    Source(
        name="rain",
        kind="arrays",
        statement="Walls of width 1 stand side by side. How much water stays between them after rain?\n"
        "Input: a line with n (1 to 120), then a line of n heights (0 to 30).\n"
        "Output: the amount of water.",
        solution="""
input()
row = list(map(int, input().split()))
left, right = 0, len(row) - 1
left_max = right_max = total = 0
while left <= right:
    if left_max <= right_max:
        left_max = max(left_max, row[left])
        total += left_max - row[left]
        left += 1
    else:
        right_max = max(right_max, row[right])
        total += right_max - row[right]
        right -= 1
print(total)
""",
        solve=_water,
        examples=(lines(6, "3 0 2 0 4 1"), lines(2, "1 2")),
        draw=lambda draw: _row(draw, 120, 0, 30),
    ),
    Source(
        name="divisible_parts",
        kind="arrays",
        statement="How many non-empty parts of a row (numbers that follow each other) have a sum that k divides?\n"
        "Input: a line with n (1 to 80) and k (1 to 12), then a line of n whole numbers, also negative "
        "ones.\n"
        "Output: one number.",
        solution="""
from collections import Counter
n, k = map(int, input().split())
seen, here, total = Counter([0]), 0, 0
for x in map(int, input().split()):
    here = (here + x) % k
    total += seen[here]
    seen[here] += 1
print(total)
""",
        solve=_divisible_parts,
        examples=(lines("4 3", "1 2 3 4"), lines("1 2", "1")),
        draw=lambda draw: _row_and(draw, 80, -20, 20, (1, 12)),
    ),
    Source(
        name="range_sums",
        kind="arrays",
        statement="Answer questions for the sum of the numbers at the places a to b (from 1, both included) of a "
        "row.\n"
        "Input: a line with n and q (1 to 60), a line of n whole numbers, then q lines with a and b (1 <= "
        "a <= b <= n).\n"
        "Output: q lines with one sum each.",
        solution="""
import sys
data = list(map(int, sys.stdin.buffer.read().split()))
n, q = data[:2]
sums = [0]
for x in data[2:2 + n]:
    sums.append(sums[-1] + x)
rest = data[2 + n:]
print("\\n".join(str(sums[rest[2 * i + 1]] - sums[rest[2 * i] - 1]) for i in range(q)))
""",
        solve=_range_sums,
        examples=(lines("4 2", "1 2 3 4", "1 4", "2 3"), lines("1 1", "-5", "1 1")),
        draw=_draw_queries,
    ),
)
