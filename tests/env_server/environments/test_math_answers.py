"""Which answers are the same."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_server.environments.math_answers import final_answer, parse_number, same_answer


@pytest.mark.parametrize(
    "text",
    ["1000", "1,000", "1000.0", "1 000", "$1,000.00", "\\$1000", "1{,}000", "1\\,000", "1000.", "+1000", "1e3",
     "2000/2", "1000%", "\\frac{2000}{2}", "\\dfrac{2,000}{2}", "x = 1000", "1000 dollars", "1,000 square feet",
     "1000\\text{ cm}", "\\text{1000}", " 1000 ", "1000^\\circ", "£1000", "999 1/1", "999\\frac{1}{1}"],
)  # fmt: skip
def test_all_forms_of_a_thousand_are_a_thousand(text: str) -> None:
    assert parse_number(text) == 1000
    assert same_answer(text, "1000")
    assert same_answer("1000", text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("-5", Fraction(-5)), ("−5", Fraction(-5)), ("\\frac34", Fraction(3, 4)), ("\\frac{-3}{4}", Fraction(-3, 4)),
     (".5", Fraction(1, 2)), ("2 1/2", Fraction(5, 2)), ("-2\\frac{1}{2}", Fraction(-5, 2)), ("3.50", Fraction(7, 2))],
)  # fmt: skip
def test_numbers_are_fractions(text: str, value: Fraction) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "-", "5x", "2 pi", "3 million", "1,00", "1/0", "\\frac{1}{0}", "(2,3)", "3 and 5", "1e999", "２３",
     "\\sqrt{2}", "__import__('os')", "2*500", "10**3", "nan", "inf", "1_000", "9" * 200],
)  # fmt: skip
def test_what_is_no_number_is_none(text: str) -> None:
    assert parse_number(text) is None
    assert not same_answer(text, "1000")


@settings(max_examples=60, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(1, 999))
def test_every_quotient_equals_its_fraction(above: int, below: int) -> None:
    expected = Fraction(above, below)
    assert parse_number(f"{above}/{below}") == expected
    assert parse_number(f"\\frac{{{above}}}{{{below}}}") == expected
    assert parse_number(f"{above:,}") == above


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_can_be_compared(text: str) -> None:
    assert isinstance(same_answer(final_answer(text), "18"), bool)
    assert isinstance(same_answer(final_answer(text), "\\sqrt{2}"), bool)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("18", "18"),
        ("So she has 3+15.\n#### 18", "18"),
        ("It is 3.\nThe answer is: 18.", "18"),
        ("The answer is 7.\nNo, the answer is 18\nbecause", "18"),
        ("first \\boxed{3}, then \\boxed{\\frac{1}{2}} #### 9", "\\frac{1}{2}"),
        ("\\boxed{18", "\\boxed{18"),
        ("####", ""),
    ],
)
def test_the_answer_is_found_in_a_solution(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_other_answers_are_compared_as_text() -> None:
    assert same_answer("\\left( 2, 3 \\right)", "(2,3)")
    assert same_answer("\\dfrac{\\sqrt{2}}{2}", "\\frac{\\sqrt{2}}{2}")
    assert same_answer("\\text{Yes}", "yes")
    assert not same_answer("", "")
    assert not same_answer("\\sqrt{3}", "\\sqrt{2}")
