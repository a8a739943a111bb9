"""Generated word problems: somebody's store of things goes through a number of events.

A problem belongs to a split by the digest of its calculation (operations and numbers, not names), so no calculation
occurs in two splits.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from env_server.environments.digests import Draws, number_of

GENERATOR_VERSION = 1
"""Rises whenever a task id may give another problem."""

STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)

# One quarter of all calculations each for valid and test.
_SPLIT_OF_QUARTER = ("train", "train", "valid", "test")
_SMALL, _LARGE = 12, 3000
"""Below the one the store is not made smaller, above the other it is not made larger."""

_NAMES = (
    "Ada", "Bruno", "Chloe", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Imani", "Jonas", "Keiko", "Lars", "Mira",
    "Nadia", "Omar", "Priya", "Quentin", "Rosa", "Sven", "Talia", "Umar", "Vera", "Wei", "Ximena", "Yusuf", "Zoe",
)  # fmt: skip
_THINGS = (
    "marbles", "stamps", "postcards", "pencils", "shells", "buttons", "stickers", "apples", "walnuts", "beads",
    "candles", "bricks", "tulips", "tickets", "badges", "coins", "cookies", "lemons", "ribbons", "seeds",
)  # fmt: skip
_SHARES = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
_TIMES = {2: "twice", 3: "three times", 4: "four times"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MathProblem:
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast:
    owner: str
    friend: str
    things: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    sentence: str
    value: Fraction
    """What is there after it."""
    operation: str
    """For the calculation's digest."""


_Make = Callable[[Draws, int, _Cast], _Event | None]
"""An event from the number of things before it; None where it does not fit."""


def generate(task_id: str, steps: int, split: str) -> MathProblem:
    """The problem of a task id: `steps` calculations, each resting on the one before."""
    for attempt in itertools.count():
        draws = Draws(f"math|{GENERATOR_VERSION}|{task_id}|{attempt}")
        problem, calculation = _story(draws, steps)
        if _SPLIT_OF_QUARTER[number_of(calculation) % 4] == split:
            return problem
    raise AssertionError("unreachable")


def _story(draws: Draws, steps: int) -> tuple[MathProblem, str]:
    owner, friend = draws.sample(_NAMES, 2)
    cast = _Cast(owner=owner, friend=friend, things=draws.pick(_THINGS))
    count = draws.between(8, 90)
    sentences = [f"{owner} has {count} {cast.things}."]
    operations = [str(count)]
    asides = draws.sample(_asides(draws, cast), draws.below(3))
    for _ in range(steps - 1):
        event = _event(draws, count, cast)
        if asides and draws.happens(0.3):
            sentences.append(asides.pop())
        sentences.append(event.sentence)
        operations.append(event.operation)
        count = int(event.value)
    ending = _ending(draws, count, cast)
    sentences.append(ending.sentence)
    operations.append(ending.operation)
    return MathProblem(question=" ".join(sentences), answer=_decimal_text(ending.value)), " ".join(operations)


def _event(draws: Draws, count: int, cast: _Cast) -> _Event:
    while True:
        event = draws.pick(_EVENTS)(draws, count, cast)
        if event is not None:
            return event


def _gift(draws: Draws, count: int, cast: _Cast) -> _Event | None:
    number = draws.between(3, 60)
    sentence = f"{cast.friend} gives {cast.owner} {number} more {cast.things}."
    return _Event(sentence=sentence, value=Fraction(count + number), operation=f"+{number}")


def _boxes(draws: Draws, count: int, cast: _Cast) -> _Event | None:
    boxes, each = draws.between(2, 9), draws.between(3, 12)
    sentence = f"{cast.owner} buys {boxes} boxes with {each} {cast.things} in each."
    return _Event(sentence=sentence, value=Fraction(count + boxes * each), operation=f"+{boxes}*{each}")


def _growth(draws: Draws, count: int, cast: _Cast) -> _Event | None:
    factor = draws.pick(tuple(_TIMES))
    if count > _LARGE:
        return None
    sentence = f"A month later {cast.owner} has {_TIMES[factor]} as many {cast.things} as before."
    return _Event(sentence=sentence, value=Fraction(count * factor), operation=f"*{factor}")


def _loss(draws: Draws, count: int, cast: _Cast) -> _Event | None:
    if count < _SMALL:
        return None
    number = draws.between(2, max(2, count // 2))
    sentence = f"{cast.owner} gives {number} {cast.things} to {cast.friend}."
    return _Event(sentence=sentence, value=Fraction(count - number), operation=f"-{number}")


def _share(draws: Draws, count: int, cast: _Cast) -> _Event | None:
    divisor = draws.pick(tuple(_SHARES))
    if count < _SMALL or count % divisor:
        return None
    sentence = f"{cast.owner} loses {_SHARES[divisor]} of the {cast.things}."
    return _Event(sentence=sentence, value=Fraction(count - count // divisor), operation=f"-1/{divisor}")


def _percentage(draws: Draws, count: int, cast: _Cast) -> _Event | None:
    percent = draws.pick((10, 20, 25, 40, 50, 60, 75))
    if count < _SMALL or count * percent % 100:
        return None
    sentence = f"{cast.owner} sells {percent}% of the {cast.things}."
    return _Event(sentence=sentence, value=Fraction(count - count * percent // 100), operation=f"-{percent}%")


def _piles(draws: Draws, count: int, cast: _Cast) -> _Event | None:
    piles = draws.between(2, 9)
    if count < 10 * piles or count % piles:
        return None
    sentence = f"{cast.owner} sorts the {cast.things} into {piles} equal piles and keeps only one of them."
    return _Event(sentence=sentence, value=Fraction(count // piles), operation=f"/{piles}")


_EVENTS: tuple[_Make, ...] = (_gift, _boxes, _growth, _loss, _share, _percentage, _piles)


def _ending(draws: Draws, count: int, cast: _Cast) -> _Event:
    """The last calculation, with the question."""
    match draws.below(3):
        case 0:
            event = _event(draws, count, cast)
            question = f"{event.sentence} How many {cast.things} does {cast.owner} have then?"
            return _Event(sentence=question, value=event.value, operation=event.operation)
        case 1:
            cents = 5 * draws.between(2, 80)
            question = (
                f"{cast.owner} sells all of the {cast.things} for ${cents // 100}.{cents % 100:02d} each. "
                f"How many dollars does {cast.owner} get for them?"
            )
            return _Event(sentence=question, value=Fraction(count * cents, 100), operation=f"*{cents}c")
        case _:
            factor = draws.pick(tuple(_TIMES))
            question = (
                f"{cast.friend} has {_TIMES[factor]} as many {cast.things} as {cast.owner} has now. "
                f"How many {cast.things} do the two have together?"
            )
            return _Event(sentence=question, value=Fraction(count * (factor + 1)), operation=f"*(1+{factor})")


def _asides(draws: Draws, cast: _Cast) -> list[str]:
    """Sentences with numbers that are not needed."""
    return [
        f"{cast.friend} is {draws.between(6, 40)} years old.",
        f"The way to the market takes {draws.between(5, 40)} minutes.",
        f"{cast.owner} lives at number {draws.between(2, 90)}.",
        f"There are {draws.between(3, 30)} shops in the street.",
    ]


def _decimal_text(value: Fraction) -> str:
    """Whole numbers as such, others with two decimals: amounts of money have no more."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.2f}"
