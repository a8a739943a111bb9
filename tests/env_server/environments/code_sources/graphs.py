"""Problems about grids and networks."""

from __future__ import annotations

import random
from itertools import permutations, product

from tests.env_server.environments.code_sources.source import Source, ints, line, lines

_FAR = 10**9


def _cells(text: str) -> dict[tuple[int, int], str]:
    return {(i, j): cell for i, row in enumerate(text.split("\n")[1:]) for j, cell in enumerate(row)}


def _relaxed(costs: dict[tuple[int, int], int], steps: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    """Lower costs along steps of cost 1 until nothing changes."""
    is_changing = True
    while is_changing:
        is_changing = False
        for here, there in steps:
            if costs[here] + 1 < costs[there]:
                costs[there], is_changing = costs[here] + 1, True


def _neighbours(cells: dict[tuple[int, int], str], free: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    places = {place for place, cell in cells.items() if cell in free}
    moves = ((0, 1), (1, 0), (0, -1), (-1, 0))
    return [((i, j), (i + a, j + b)) for i, j in places for a, b in moves if (i + a, j + b) in places]


def _shortest(text: str) -> str:
    cells = _cells(text)
    costs = {place: 0 if cell == "S" else _FAR for place, cell in cells.items()}
    _relaxed(costs, _neighbours(cells, ".SE"))
    end = next(costs[place] for place, cell in cells.items() if cell == "E")
    return str(end if end < _FAR else -1)


def _draw_maze(draw: random.Random) -> str:
    height, width = draw.randint(2, 14), draw.randint(2, 14)
    rows = [["#" if draw.random() < 0.28 else "." for _ in range(width)] for _ in range(height)]
    places = draw.sample(list(product(range(height), range(width))), 2)
    for (i, j), mark in zip(places, "SE", strict=True):
        rows[i][j] = mark
    return lines(line(height, width), *("".join(row) for row in rows))


def _edges(values: list[int], width: int) -> list[list[int]]:
    return [values[start : start + width] for start in range(0, len(values), width)]


def _components(text: str) -> str:
    count, _, *rest = ints(text)
    names = list(range(count + 1))
    for _ in range(count):
        for a, b in _edges(rest, 2):
            names[a] = names[b] = min(names[a], names[b])
    sizes = [names[1:].count(name) for name in set(names[1:])]
    return line(len(sizes), max(sizes))


def _draw_network(draw: random.Random) -> str:
    count = draw.randint(2, 30)
    pairs = {tuple(sorted(draw.sample(range(1, count + 1), 2))) for _ in range(draw.randint(0, count))}
    return lines(line(count, len(pairs)), *(line(*pair) for pair in sorted(pairs)))


def _order(text: str) -> str:
    count, _, *rest = ints(text)
    before = _edges(rest, 2)
    for order in permutations(range(1, count + 1)):  # in lexicographic order
        if all(order.index(a) < order.index(b) for a, b in before):
            return line(*order)
    return "impossible"


def _draw_tasks(draw: random.Random) -> str:
    count = draw.randint(2, 7)
    names = draw.sample(range(1, count + 1), count)
    pairs = {tuple(sorted(draw.sample(range(count), 2))) for _ in range(draw.randint(0, 8))}
    rules = [(names[a], names[b]) for a, b in sorted(pairs)]
    if rules and draw.random() < 0.25:
        rules.append((rules[0][1], rules[0][0]))
    return lines(line(count, len(rules)), *(line(*rule) for rule in rules))


def _cheapest(text: str) -> str:
    count, _, *rest = ints(text)
    costs = [[0 if a == b else _FAR for b in range(count + 1)] for a in range(count + 1)]
    for a, b, cost in _edges(rest, 3):
        costs[a][b] = costs[b][a] = min(costs[a][b], cost)
    for via, a, b in product(range(1, count + 1), repeat=3):
        costs[a][b] = min(costs[a][b], costs[a][via] + costs[via][b])
    return str(costs[1][count] if costs[1][count] < _FAR else -1)


def _draw_roads(draw: random.Random) -> str:
    count = draw.randint(2, 20)
    roads = [line(*draw.sample(range(1, count + 1), 2), draw.randint(1, 50)) for _ in range(draw.randint(1, 2 * count))]
    return lines(line(count, len(roads)), *roads)


def _tree(text: str) -> str:
    count, _, *rest = ints(text)
    inside, total = {1}, 0
    while len(inside) < count:
        cost, place = min(
            (cost, b if a in inside else a) for a, b, cost in _edges(rest, 3) if (a in inside) != (b in inside)
        )
        inside.add(place)
        total += cost
    return str(total)


def _draw_connected(draw: random.Random) -> str:
    count = draw.randint(2, 20)
    roads = [line(draw.randint(1, place - 1), place, draw.randint(1, 99)) for place in range(2, count + 1)]
    roads += [line(*draw.sample(range(1, count + 1), 2), draw.randint(1, 99)) for _ in range(draw.randint(0, 25))]
    draw.shuffle(roads)
    return lines(line(count, len(roads)), *roads)


def _two_teams(text: str) -> str:
    count, _, *rest = ints(text)
    pairs = _edges(rest, 2)
    return "yes" if any(
        all(teams[a - 1] != teams[b - 1] for a, b in pairs) for teams in product((0, 1), repeat=count)
    ) else "no"  # fmt: skip


def _draw_rivals(draw: random.Random) -> str:
    count = draw.randint(2, 10)
    teams = [draw.randrange(2) for _ in range(count)]
    pairs = {tuple(sorted(draw.sample(range(count), 2))) for _ in range(draw.randint(1, 14))}
    if draw.random() < 0.6:
        pairs = {(a, b) for a, b in pairs if teams[a] != teams[b]}
    return lines(line(count, len(pairs)), *(line(a + 1, b + 1) for a, b in sorted(pairs)))


def _islands(text: str) -> str:
    land = {place for place, cell in _cells(text).items() if cell == "#"}
    sizes: list[int] = []
    while land:
        island = {land.pop()}
        while more := {(i, j) for i, j in land if any(abs(i - a) + abs(j - b) == 1 for a, b in island)}:
            island |= more
            land -= more
        sizes.append(len(island))
    return line(*sorted(sizes)) if sizes else "none"


def _draw_sea(draw: random.Random) -> str:
    height, width = draw.randint(1, 14), draw.randint(1, 14)
    density = draw.choice((0.2, 0.45, 0.6))
    rows = ["".join("#" if draw.random() < density else "." for _ in range(width)) for _ in range(height)]
    return lines(line(height, width), *rows)


SOURCES = (
    Source(
        name="shortest_way",
        kind="graphs",
        statement="How many steps (up, down, left, right) does the shortest way from S to E need, over free cells "
        "(.) and not over walls (#)?\n"
        "Input: a line with h and w (1 to 14), then h rows of w cells.\n"
        "Output: one number, or -1 if there is no way.",
        solution="""
from collections import deque
h, w = map(int, input().split())
grid = [input() for _ in range(h)]
start = next((i, j) for i in range(h) for j in range(w) if grid[i][j] == "S")
queue, seen, answer = deque([(start, 0)]), {start}, -1
while queue:
    (i, j), steps = queue.popleft()
    if grid[i][j] == "E":
        answer = steps
        break
    for a, b in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
        if 0 <= a < h and 0 <= b < w and grid[a][b] != "#" and (a, b) not in seen:
            seen.add((a, b))
            queue.append(((a, b), steps + 1))
print(answer)
""",
        solve=_shortest,
        examples=(lines("3 4", "S.#.", ".##E", "...."), lines("1 3", "S#E")),
        draw=_draw_maze,
    ),
    Source(
        name="components",
        kind="graphs",
        statement="Computers are joined by cables, and reach each other through others. Into how many groups does "
        "the network fall, and how many computers has the largest?\n"
        "Input: a line with n (1 to 30) and m, then m lines with the two ends of a cable (1 to n).\n"
        "Output: the number of groups and the size of the largest.",
        solution="""
import sys
data = list(map(int, sys.stdin.read().split()))
n, m = data[:2]
parent = list(range(n + 1))
def find(x):
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x
for i in range(m):
    a, b = find(data[2 + 2 * i]), find(data[3 + 2 * i])
    parent[a] = b
sizes = {}
for x in range(1, n + 1):
    root = find(x)
    sizes[root] = sizes.get(root, 0) + 1
print(len(sizes), max(sizes.values()))
""",
        solve=_components,
        examples=(lines("5 3", "1 2", "2 3", "4 5"), lines("1 0")),
        draw=_draw_network,
    ),
    Source(
        name="order_of_work",
        kind="graphs",
        statement="Some pieces of work must be done before others. Give the order of all n pieces that keeps every "
        "rule; of several the one with the smallest first number, then the smallest second, and so on.\n"
        "Input: a line with n (2 to 7) and m, then m lines with a and b: a before b.\n"
        "Output: the order in one line, or impossible.",
        solution="""
import heapq
n, m = map(int, input().split())
after = [[] for _ in range(n + 1)]
waiting = [0] * (n + 1)
for _ in range(m):
    a, b = map(int, input().split())
    after[a].append(b)
    waiting[b] += 1
ready = [x for x in range(1, n + 1) if not waiting[x]]
order = []
while ready:
    x = heapq.heappop(ready)
    order.append(x)
    for y in after[x]:
        waiting[y] -= 1
        if not waiting[y]:
            heapq.heappush(ready, y)
print(*order) if len(order) == n else print("impossible")
""",
        solve=_order,
        examples=(lines("4 2", "3 1", "2 1"), lines("2 2", "1 2", "2 1")),
        draw=_draw_tasks,
    ),
    Source(
        name="cheapest_way",
        kind="graphs",
        statement="Roads can be used both ways, each at its cost. What does the cheapest way from place 1 to place "
        "n cost?\n"
        "Input: a line with n (2 to 20) and m (1 to 40), then m lines with a road's two ends and its cost "
        "(1 to 50).\n"
        "Output: one number, or -1 if there is no way.",
        solution="""
import heapq
n, m = map(int, input().split())
roads = [[] for _ in range(n + 1)]
for _ in range(m):
    a, b, c = map(int, input().split())
    roads[a].append((b, c))
    roads[b].append((a, c))
best = {1: 0}
heap = [(0, 1)]
while heap:
    cost, x = heapq.heappop(heap)
    if cost > best[x]:
        continue
    for y, c in roads[x]:
        if cost + c < best.get(y, 10 ** 18):
            best[y] = cost + c
            heapq.heappush(heap, (cost + c, y))
print(best.get(n, -1))
""",
        solve=_cheapest,
        examples=(lines("3 3", "1 2 4", "2 3 1", "1 3 7"), lines("3 1", "1 2 1")),
        draw=_draw_roads,
    ),
    Source(
        name="cheapest_net",
        kind="graphs",
        statement="Which is the lowest cost of roads that join all n places, if only listed roads can be built? All "
        "places can be joined.\n"
        "Input: a line with n (2 to 20) and m, then m lines with a road's two ends and its cost.\n"
        "Output: one number.",
        solution="""
n, m = map(int, input().split())
roads = sorted((tuple(map(int, input().split())) for _ in range(m)), key=lambda road: road[2])
parent = list(range(n + 1))
def find(x):
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x
total = 0
for a, b, c in roads:
    a, b = find(a), find(b)
    if a != b:
        parent[a] = b
        total += c
print(total)
""",
        solve=_tree,
        examples=(lines("3 3", "1 2 5", "2 3 2", "1 3 4"), lines("2 1", "1 2 9")),
        draw=_draw_connected,
    ),
    Source(
        name="two_teams",
        kind="graphs",
        statement="Can people be put into two teams so that no two rivals are in the same team?\n"
        "Input: a line with n (2 to 10) and m, then m lines with two rivals (1 to n).\n"
        "Output: yes or no.",
        solution="""
n, m = map(int, input().split())
rivals = [[] for _ in range(n + 1)]
for _ in range(m):
    a, b = map(int, input().split())
    rivals[a].append(b)
    rivals[b].append(a)
team = [0] * (n + 1)
ok = True
for start in range(1, n + 1):
    if team[start]:
        continue
    team[start], stack = 1, [start]
    while stack:
        x = stack.pop()
        for y in rivals[x]:
            if not team[y]:
                team[y] = -team[x]
                stack.append(y)
            elif team[y] == team[x]:
                ok = False
print("yes" if ok else "no")
""",
        solve=_two_teams,
        examples=(lines("3 2", "1 2", "2 3"), lines("3 3", "1 2", "2 3", "1 3")),
        draw=_draw_rivals,
    ),
    Source(
        name="islands",
        kind="graphs",
        statement="On a map # is land and . is sea. Land cells that touch on a side are of one island. How large "
        "are the islands?\n"
        "Input: a line with h and w (1 to 14), then h rows of w cells.\n"
        "Output: the sizes from the smallest to the largest in one line, or none.",
        solution="""
h, w = map(int, input().split())
land = {(i, j) for i in range(h) for j, c in enumerate(input()) if c == "#"}
sizes = []
while land:
    stack, size = [land.pop()], 0
    while stack:
        i, j = stack.pop()
        size += 1
        for cell in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if cell in land:
                land.remove(cell)
                stack.append(cell)
    sizes.append(size)
print(*sorted(sizes)) if sizes else print("none")
""",
        solve=_islands,
        examples=(lines("3 4", "##..", "...#", "#..#"), lines("1 2", "..")),
        draw=_draw_sea,
    ),
)
