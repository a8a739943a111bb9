"""One problem as it is written down."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_PUBLIC = 2
NUM_TESTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A problem whose program reads stdin and writes stdout, or, with `function`, defines a function."""

    name: str
    kind: str
    statement: str
    """What is asked, with the forms of input and output."""
    solution: str
    solve: Callable[[str], str]
    """Independent of the solution: input text to output text; for a function JSON arguments to JSON result."""
    examples: Sequence[str]
    """Inputs shown to whoever solves it; the first `NUM_PUBLIC` tests."""
    draw: Callable[[random.Random], str]
    """Another input."""
    edges: Sequence[str] = ()
    """Inputs that every test set must have."""
    function: str = ""

    def inputs(self) -> list[str]:
        """The inputs of all tests, examples first, each once."""
        draw = random.Random(self.name)
        chosen = list(dict.fromkeys([*self.examples[:NUM_PUBLIC], *self.edges]))
        drawn = dict.fromkeys(self.draw(draw) for _ in range(4 * NUM_TESTS))
        chosen += [text for text in drawn if text not in chosen]
        return chosen[:NUM_TESTS]


def line(*values: object) -> str:
    """Values in a line."""
    return " ".join(map(str, values))


def lines(*rows: object) -> str:
    """Rows, each a line."""
    return "\n".join(map(str, rows)) + "\n"


def ints(text: str) -> list[int]:
    """All numbers of a text."""
    return [int(word) for word in text.split()]


def numbers(draw: random.Random, count: int, low: int, high: int) -> list[int]:
    """Random numbers."""
    return [draw.randint(low, high) for _ in range(count)]


def letters(draw: random.Random, count: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
    """A random word."""
    return "".join(draw.choice(alphabet) for _ in range(count))
