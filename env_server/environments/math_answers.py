"""Answers to mathematical problems: where they stand in a text, and when two are the same.

Numbers are parsed into fractions, never evaluated as code: 1,000, 1000.0, $1,000, 1e3, 2000/2, \\frac{2000}{2} and
\\boxed{1000} are all the same. What is no number (a surd, a pair) is compared as text.
"""

import re
from fractions import Fraction

_MAX_NUMBER_CHARS = 100
_MARKS = re.compile(r"####|answer\s+is\s*:?", re.IGNORECASE)

_DIGITS = r"(?:\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?"
_DECIMAL = re.compile(_DIGITS, re.ASCII)
_QUOTIENT = re.compile(rf"({_DIGITS})\s*/\s*({_DIGITS})", re.ASCII)
_FRACTION = re.compile(
    rf"\\[dt]?frac\s*(?:\{{\s*(-?{_DIGITS})\s*\}}|(\d))\s*(?:\{{\s*(-?{_DIGITS})\s*\}}|(\d))", re.ASCII
)
_MIXED = re.compile(r"(\d+)\s*(\\[dt]?frac.*|(?<=\s)\d+\s*/\s*\d+)", re.ASCII)

_NAMED_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}")
_UNIT_WORDS = re.compile(r"(?<=[\d}])\s+([A-Za-z][A-Za-z .²³/-]*[A-Za-z²³])$")
_NO_UNITS = re.compile(r"\b(?:pi|sqrt|dozen|hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)
_SPACING = re.compile(r"\\(?:[!,;: ]|left|right|displaystyle|quad)|\^\{?\\circ\}?|°|[$€£]|\\?%|~")


def final_answer(text: str) -> str:
    """The part of a solution that is its answer; empty where there is none.

    The last \\boxed{...}; else the rest of the line after the last `####` or `answer is`; else the whole text.
    """
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    mark = None
    for found in _MARKS.finditer(text):
        mark = found
    rest = text if mark is None else text[mark.end() :].strip().partition("\n")[0]
    return rest.strip().removesuffix(".").rstrip()


def has_mark(text: str) -> bool:
    """Whether the text says which of its parts is the answer."""
    return _last_boxed(text) is not None or _MARKS.search(text) is not None


def parse_number(answer: str) -> Fraction | None:
    """The number that an answer is, its currency, per cent sign and unit left out; None where it is no number."""
    if len(answer) > _MAX_NUMBER_CHARS:
        return None
    text = _SPACING.sub("", answer.replace("−", "-").replace("{,}", ",").replace("\\$", "").replace("\\!", ""))
    text = _NAMED_UNIT.sub(lambda unit: "" if not re.search(r"\d", unit[1]) else unit[1], text)
    text = text.rpartition("=")[2].strip().removesuffix(".")
    unit = _UNIT_WORDS.search(text)
    if unit and not _NO_UNITS.search(unit[1]):
        text = text[: unit.start()]
    sign, text = (-1, text[1:].strip()) if text.startswith("-") else (1, text.removeprefix("+").strip())
    value = _unsigned(text)
    return None if value is None else sign * value


def same_answer(given: str, expected: str) -> bool:
    """Whether two answers are equal: as numbers where the expected one is a number, else as text without spacing."""
    number = parse_number(expected)
    if number is not None:
        return parse_number(given) == number
    return _plain(given) == _plain(expected) != ""


def _unsigned(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return _decimal(text)
    if found := _QUOTIENT.fullmatch(text):
        return _divided(_decimal(found[1]), _decimal(found[2]))
    if found := _FRACTION.fullmatch(text):
        above, below = found[1] or found[2], found[3] or found[4]
        return _divided(_decimal(above), _decimal(below))
    if found := _MIXED.fullmatch(text):
        part = _unsigned(found[2].strip())
        return None if part is None else int(found[1]) + part
    return None


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", ""))


def _divided(above: Fraction, below: Fraction) -> Fraction | None:
    return above / below if below else None


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None


def _plain(answer: str) -> str:
    text = _NAMED_UNIT.sub(lambda unit: unit[1], answer)
    text = re.sub(r"\\[dt]frac", r"\\frac", _SPACING.sub("", text))
    return re.sub(r"\s+", "", text).lower().removesuffix(".")
