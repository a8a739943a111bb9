"""Digests and random choices fixed by a text: the same in every process, on every machine, in every Python."""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def digest(text: str, *, size: int = 8) -> bytes:
    """`size` bytes; any text has one, lone surrogates included."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def number_of(text: str) -> int:
    """A 64-bit number fixed by the text."""
    return int.from_bytes(digest(text), "little")


def state_hash(*parts: object) -> bytes:
    """16 bytes fixed by the representations of the parts."""
    return digest(repr(parts), size=16)


class Draws:
    """Random choices fixed by a text.

    They rest on `Random.random` alone, the one method whose sequence Python promises to keep.
    """

    def __init__(self, text: str) -> None:
        self._random = random.Random(number_of(text))

    def below(self, bound: int) -> int:
        """A number in [0, bound)."""
        return int(self._random.random() * bound)

    def between(self, low: int, high: int) -> int:
        """A number in [low, high]."""
        return low + self.below(high - low + 1)

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items, all of them where there are fewer, in random order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]
