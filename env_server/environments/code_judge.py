"""Whether a program's output is the expected one."""

import json
import math
from typing import Any

RELATIVE_TOLERANCE = 1e-6
"""Of numbers with a decimal point, as in the published checkers."""


def is_expected(output: str, expected: str) -> bool:
    """Line by line equal but for blanks around a line and empty lines at the end; numbers with a point may be close."""
    printed, wanted = _lines(output), _lines(expected)
    return len(printed) == len(wanted) and all(map(_is_line_equal, printed, wanted))


def is_expected_result(result: str, expected: str) -> bool:
    """Equal JSON values; some collections wrap a function's result in a list of one."""
    value, wanted = json.loads(result), json.loads(expected)
    return _is_value_equal(value, wanted) or _is_value_equal([value], wanted)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.rstrip().split("\n")]


def _is_line_equal(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    words, wanted_words = line.split(), wanted.split()
    return len(words) == len(wanted_words) and all(map(_is_word_equal, words, wanted_words))


def _is_word_equal(word: str, wanted: str) -> bool:
    return word == wanted or ("." in wanted and _is_close(_number(word), _number(wanted)))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _is_close(value: float | None, wanted: float | None) -> bool:
    if value is None or wanted is None:
        return False
    return math.isclose(value, wanted, rel_tol=RELATIVE_TOLERANCE, abs_tol=RELATIVE_TOLERANCE)


def _is_value_equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(_is_value_equal, value, wanted))
    if isinstance(wanted, dict):
        is_dict = isinstance(value, dict) and value.keys() == wanted.keys()
        return is_dict and all(_is_value_equal(value[key], wanted[key]) for key in wanted)
    if isinstance(wanted, float) and isinstance(value, int | float):
        return _is_close(float(value), wanted)
    return type(value) is type(wanted) and value == wanted
