"""Countdown: expressions, credit and generated targets."""

from fractions import Fraction

import pytest

from env_server.environments.arithmetic import ExpressionError, evaluate
from env_server.environments.countdown import MAX_TARGET, MIN_TARGET, Countdown, CountdownGame, make_countdown
from env_server.environments.generated_tasks import private_random
from env_server.environments.puzzle import InvalidActionError

COUNTDOWN = Countdown((3, 5, 7), 22, "3 * 5 + 7")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("2 - 3 - 4", -5),
        ("8 / 4 / 2", 1),
        ("1/3*3", 1),
        ("7/2", Fraction(7, 2)),
        ("((((1))))", 1),
        ("\t10  *10 ", 100),
    ],
)
def test_expressions_have_their_exact_value(text: str, number: Fraction) -> None:
    assert evaluate(text).number == number


def test_operands_are_listed_in_order() -> None:
    assert evaluate("(25 - 7) * 3 + 25").operands == (25, 7, 3, 25)


@pytest.mark.parametrize(
    "text",
    [
        "", "-", "1 +", "+ 1", "-1", "1 2", "()", "(1", "1)", "2(3)", "2**3", "2//3", "1.5", "1e9", "x", "1_000",
        "__import__('os').system('x')", "1 = 1", "３", "²", "1/0", "5/(3-3)", "(" * 200 + "1" + ")" * 200,
        "9999999999", "1\n+1", "1\0", "\ud800",
    ],
)  # fmt: skip
def test_anything_else_is_no_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text)


def test_the_right_numbers_earn_part_of_the_score_once_and_the_target_the_rest() -> None:
    game = CountdownGame(COUNTDOWN)
    assert game.act("3 + 5 + 7") == "That is 15, not 22."
    assert game.score == 0.1
    assert game.act("3 / 7 * 5") == "That is 15/7, not 22."
    assert game.score == 0.1
    assert game.act("5 * 3 + 7.") == "That is the target. You win."
    assert (game.is_won, game.score, game.progress()) == (True, 1.0, 1.0)


@pytest.mark.parametrize("action", ["22", "3 * 5", "3 * 5 + 7 + 7 - 7", "15 + 7", "35 - 7", "3 * 5 + 8"])
def test_other_numbers_earn_nothing(action: str) -> None:
    game = CountdownGame(COUNTDOWN)
    with pytest.raises(InvalidActionError, match="exactly once"):
        game.act(action)
    assert (game.score, game.is_won) == (0.0, False)


@pytest.mark.parametrize("num_numbers", [2, 4, 8])
def test_targets_are_reached_by_their_construction(num_numbers: int) -> None:
    made = [make_countdown(private_random(number), num_numbers=num_numbers, largest=50) for number in range(60)]
    usable = [countdown for countdown in made if countdown is not None]
    assert len(usable) > 10
    for countdown in usable:
        value = evaluate(countdown.solution)
        assert value.number == countdown.target
        assert sorted(value.operands) == sorted(countdown.numbers)
        assert MIN_TARGET <= countdown.target <= MAX_TARGET
        assert countdown.target not in countdown.numbers
