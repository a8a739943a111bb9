"""Problems about numbers."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import isqrt

from tests.env_server.environments.code_sources.source import Source, ints, line, lines, numbers

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _digit_sums(text: str) -> str:
    number, steps = text.strip(), 0
    while len(number) > 1:
        number, steps = str(sum(map(int, number))), steps + 1
    return line(number, steps)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def _gap(text: str) -> str:
    primes = [number for number in range(2, int(text) + 1) if _is_prime(number)]
    return str(max(after - before for before, after in pairwise(primes)))


def _fraction_sum(text: str) -> str:
    total = sum(map(Fraction, text.split()[1:]), Fraction(0))
    return f"{total.numerator}/{total.denominator}"


def _draw_fractions(draw: random.Random) -> str:
    count = draw.randint(1, 12)
    return lines(count, *(f"{draw.randint(-30, 30)}/{draw.randint(1, 30)}" for _ in range(count)))


def _rebased(text: str) -> str:
    word, old, new = text.split()
    number = int(word, int(old))
    return _in_base(number, int(new))


def _in_base(number: int, base: int) -> str:
    return _DIGITS[number] if number < base else _in_base(number // base, base) + _DIGITS[number % base]


def _draw_rebase(draw: random.Random) -> str:
    old, new = draw.randint(2, 36), draw.randint(2, 36)
    return lines(line(_in_base(draw.randrange(10 ** draw.randint(1, 30)), old), old, new))


@cache
def _collatz(number: int) -> int:
    return 1 if number == 1 else 1 + _collatz(3 * number + 1 if number % 2 else number // 2)


def _longest_collatz(text: str) -> str:
    lengths = [(-_collatz(number), number) for number in range(1, int(text) + 1)]
    return line(min(lengths)[1], -min(lengths)[0])


@cache
def _partitions(total: int, largest: int) -> int:
    if total == 0:
        return 1
    return sum(_partitions(total - part, part) for part in range(1, min(total, largest) + 1))


def _last_of_circle(text: str) -> str:
    count, step = ints(text)
    people = list(range(1, count + 1))
    while len(people) > 1:
        start = step % len(people)
        people = people[start:] + people[: start - 1] if start else people[:-1]
    return str(people[0])


def _power(text: str) -> str:
    base, exponent, modulus = ints(text)
    result = 1 % modulus
    for bit in bin(exponent)[2:]:
        result = result * result % modulus
        if bit == "1":
            result = result * base % modulus
    return str(result)


def _divisor_sums(text: str) -> str:
    return line(*(_sigma(number) - number for number in ints(text)[1:]))


def _sigma(number: int) -> int:
    """The sum of all divisors, from the prime factors."""
    product, rest, factor = 1, number, 2
    while rest > 1:
        factor = factor if factor * factor <= rest else rest
        total = power = 1
        while rest % factor == 0:
            rest, power = rest // factor, power * factor
            total += power
        product, factor = product * total, factor + 1
    return product


def _bits(text: str) -> str:
    low, high = ints(text)
    return str(_ones_below(high + 1) - _ones_below(low))


@cache
def _ones_below(end: int) -> int:
    """Of all numbers below: those of the even ones, of the odd ones, and the last bits of the odd ones."""
    return 0 if end <= 1 else _ones_below((end + 1) // 2) + _ones_below(end // 2) + end // 2


SOURCES = (
    Source(
        name="digit_root",
        kind="numbers",
        statement="Replace a number by the sum of its digits until one digit is left.\n"
        "Input: one line, a number from 0 to 10^200.\n"
        "Output: the digit and how often the number was replaced.",
        solution="""
n = input().strip()
steps = 0
while len(n) > 1:
    n = str(sum(int(c) for c in n))
    steps += 1
print(n, steps)
""",
        solve=_digit_sums,
        examples=("9875\n", "7\n"),
        edges=("0\n", "9" * 200 + "\n"),
        draw=lambda draw: lines(draw.randrange(10 ** draw.randint(1, 200))),
    ),
    Source(
        name="prime_gap",
        kind="numbers",
        statement="What is the largest difference between two primes up to n that follow each other?\n"
        "Input: one line, n (3 to 30000).\n"
        "Output: one number.",
        solution="""
n = int(input())
sieve = bytearray([1]) * (n + 1)
sieve[:2] = b"\\0\\0"
for i in range(2, int(n ** 0.5) + 1):
    if sieve[i]:
        sieve[i * i::i] = bytearray(len(range(i * i, n + 1, i)))
best, last = 0, None
for i in range(n + 1):
    if sieve[i]:
        if last is not None:
            best = max(best, i - last)
        last = i
print(best)
""",
        solve=_gap,
        examples=("10\n", "100\n"),
        edges=("3\n", "30000\n"),
        draw=lambda draw: lines(draw.randint(3, 20_000)),
    ),
    Source(
        name="sum_of_fractions",
        kind="numbers",
        statement="Add fractions.\n"
        "Input: a line with n (1 to 50), then n lines a/b with b > 0.\n"
        "Output: the sum as a/b in lowest terms, with b > 0; a whole number has b = 1.",
        solution="""
from math import gcd
num, den = 0, 1
for _ in range(int(input())):
    a, b = map(int, input().split("/"))
    num, den = num * b + a * den, den * b
    g = gcd(num, den)
    num, den = num // g, den // g
print(f"{num}/{den}")
""",
        solve=_fraction_sum,
        examples=(lines(2, "1/2", "1/3"), lines(2, "1/4", "-1/4")),
        draw=_draw_fractions,
    ),
    Source(
        name="other_base",
        kind="numbers",
        statement="Write a number in another base; the digits are 0-9 and a-z.\n"
        "Input: one line with the number, its base and the new base (2 to 36).\n"
        "Output: the number in the new base, without leading zeros.",
        solution="""
word, a, b = input().split()
n, b = int(word, int(a)), int(b)
digits = "0123456789abcdefghijklmnopqrstuvwxyz"
out = ""
while n:
    n, r = divmod(n, b)
    out = digits[r] + out
print(out or "0")
""",
        solve=_rebased,
        examples=("ff 16 2\n", "0 10 7\n"),
        draw=_draw_rebase,
    ),
    Source(
        name="longest_collatz",
        kind="numbers",
        statement="From a number x > 1 go on with x / 2 if x is even, else with 3x + 1, until 1 is reached. Which "
        "start from 1 to n gives the longest sequence, start and 1 included? Of several take the "
        "smallest.\n"
        "Input: one line, n (1 to 2000).\n"
        "Output: the start and the length of its sequence.",
        solution="""
n = int(input())
known = {1: 1}
best = (1, 1)
for start in range(1, n + 1):
    x, path = start, []
    while x not in known:
        path.append(x)
        x = 3 * x + 1 if x % 2 else x // 2
    length = known[x]
    for y in reversed(path):
        length += 1
        known[y] = length
    if known[start] > best[1]:
        best = (start, known[start])
print(*best)
""",
        solve=_longest_collatz,
        examples=("10\n", "1\n"),
        draw=lambda draw: lines(draw.randint(2, 2_000)),
    ),
    Source(
        name="partitions",
        kind="numbers",
        statement="In how many ways is n a sum of positive whole numbers, if their order does not matter?\n"
        "Input: one line, n (1 to 120).\n"
        "Output: one number.",
        solution="""
n = int(input())
ways = [1] + [0] * n
for part in range(1, n + 1):
    for total in range(part, n + 1):
        ways[total] += ways[total - part]
print(ways[n])
""",
        solve=lambda text: str(_partitions(int(text), int(text))),
        examples=("4\n", "1\n"),
        edges=("120\n",),
        draw=lambda draw: lines(draw.randint(2, 119)),
    ),
    Source(
        name="last_of_the_circle",
        kind="numbers",
        statement="n people, numbered 1 to n, stand in a circle. Counting from 1, every k-th leaves, and the count "
        "goes on behind the place that was left. Who is the last?\n"
        "Input: one line with n (1 to 500) and k (1 to 1000).\n"
        "Output: the number of the last person.",
        solution="""
n, k = map(int, input().split())
last = 0
for size in range(2, n + 1):
    last = (last + k) % size
print(last + 1)
""",
        solve=_last_of_circle,
        examples=("5 2\n", "1 7\n"),
        draw=lambda draw: lines(line(draw.randint(2, 500), draw.randint(1, 1000))),
    ),
    Source(
        name="power_rest",
        kind="numbers",
        statement="What is left when a to the power b is divided by m? 0 to the power 0 is 1.\n"
        "Input: one line with a, b (0 to 10^18) and m (1 to 10^9).\n"
        "Output: one number.",
        solution="""
a, b, m = map(int, input().split())
print(pow(a, b, m))
""",
        solve=_power,
        examples=("2 10 1000\n", "7 0 1\n"),
        edges=("0 0 5\n", "1000000000000000000 1000000000000000000 999999937\n"),
        draw=lambda draw: lines(line(draw.randrange(10**18), draw.randrange(10**18), draw.randint(1, 10**9))),
    ),
    Source(
        name="proper_divisors",
        kind="numbers",
        statement="Print for each number the sum of its divisors without itself.\n"
        "Input: a line with n (1 to 6), then a line of n numbers from 1 to 10^9.\n"
        "Output: one line with the n sums.",
        solution="""
input()
out = []
for n in map(int, input().split()):
    total, d = 0, 1
    while d * d <= n:
        if n % d == 0:
            total += d
            if d * d != n:
                total += n // d
        d += 1
    out.append(total - n)
print(*out)
""",
        solve=_divisor_sums,
        examples=(lines(3, "6 7 12"), lines(1, "1")),
        draw=lambda draw: lines(n := draw.randint(1, 6), line(*numbers(draw, n, 1, 10 ** draw.randint(2, 9)))),
    ),
    Source(
        name="ones_between",
        kind="numbers",
        statement="How many ones do the binary forms of all numbers from a to b have together?\n"
        "Input: one line with a and b (0 <= a <= b <= 10^15).\n"
        "Output: one number.",
        solution="""
def upto(n):
    n += 1
    total, bit = 0, 1
    while bit < n:
        total += n // (2 * bit) * bit + max(0, n % (2 * bit) - bit)
        bit *= 2
    return total

a, b = map(int, input().split())
print(upto(b) - (upto(a - 1) if a else 0))
""",
        solve=_bits,
        examples=("1 5\n", "0 0\n"),
        draw=lambda draw: lines(line(*sorted(draw.randrange(10 ** draw.randint(1, 15)) for _ in range(2)))),
    ),
)
