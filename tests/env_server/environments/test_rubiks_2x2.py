"""The 2x2x2 cube: turns against known facts of the puzzle, and the solver."""

from collections import Counter

import pytest

from env_server.environments.generated_tasks import private_random
from env_server.environments.puzzle import InvalidActionError
from env_server.environments.rubiks_2x2 import CubeGame
from env_server.environments.rubiks_2x2_cube import (
    MOVES,
    Cube,
    distance,
    is_solved,
    oriented,
    solve,
    solved_cube,
    turn,
)

POSITIONS_AT_DISTANCE = (1, 6, 27, 120, 534)
"""Of the 2x2x2 cube in quarter turns; known since its enumeration."""


def turned(moves: str, cube: Cube | None = None) -> Cube:
    cube = cube or solved_cube()
    for move in moves.split():
        cube = turn(cube, move)
    return cube


def order(moves: str) -> int:
    """How often the moves must be repeated until the cube is as before."""
    cube, number = turned(moves), 1
    while cube != solved_cube():
        cube, number = turned(moves, cube), number + 1
    return number


@pytest.mark.parametrize("move", MOVES)
def test_a_turn_has_order_4_and_an_inverse_and_keeps_the_colours(move: str) -> None:
    assert order(move) == 4
    inverse = move.removesuffix("'") if move.endswith("'") else f"{move}'"
    assert turned(f"{move} {inverse}") == solved_cube()
    assert Counter(turned(move)) == Counter(solved_cube())


@pytest.mark.parametrize(("moves", "expected"), [("R U R' U'", 6), ("R U", 15), ("R U'", 9), ("R R U U", 3)])
def test_sequences_have_their_known_orders(moves: str, expected: int) -> None:
    """Of the big cube's orders 6, 105, 63 and 6 what belongs to its corners."""
    assert order(moves) == expected


def test_turns_go_the_standard_way() -> None:
    up, left, front, right, back, down = (turned("R")[at : at + 4] for at in range(0, 24, 4))
    assert up == ("W", "G", "W", "G")  # the front's right column comes up
    assert front == ("G", "Y", "G", "Y")
    assert back == ("W", "B", "W", "B")
    assert down == ("Y", "B", "Y", "B")
    assert (left, right) == (("O",) * 4, ("R",) * 4)
    assert turned("U")[4:8] == ("G", "G", "O", "O")  # the front's upper row goes left
    assert turned("F")[12:16] == ("W", "R", "W", "R")  # the up face's lower row goes right


def test_opposite_turns_only_turn_the_whole_cube() -> None:
    assert is_solved(turned("R L'"))
    assert not is_solved(turned("R L"))
    assert oriented(turned("R L'")) == solved_cube()
    assert oriented(turned("R")) == oriented(turned("L"))


def test_distances_count_the_known_numbers_of_positions() -> None:
    frontier, seen = {solved_cube()}, {solved_cube()}
    for depth, expected in enumerate(POSITIONS_AT_DISTANCE):
        assert len(frontier) == expected
        assert all(distance(cube) == depth for cube in list(frontier)[:50])
        frontier = {oriented(turn(cube, move)) for cube in frontier for move in MOVES} - seen
        seen |= frontier


def test_solutions_solve_and_are_as_short_as_they_can_be() -> None:
    for number in range(12):
        rng = private_random(number)
        moves = [rng.choice(MOVES) for _ in range(3 + number)]
        cube = turned(" ".join(moves))
        solution = solve(cube)
        assert is_solved(turned(" ".join(solution), cube))
        assert len(solution) <= min(14, len(moves))
        assert len(solution) == distance(cube) or distance(cube) == 7 <= len(solution)


def test_several_turns_stand_in_one_action_as_far_as_the_knob_says() -> None:
    game = CubeGame(turned("R U F'"), moves_per_turn=4)
    with pytest.raises(InvalidActionError, match="1 to 4"):
        game.act("F, U', R', R, R'")
    assert game.act("f, u', r', B") == "You turn F, U', R'. Every face has one colour. You win."
    assert (game.is_won, game.score, game.progress()) == (True, 1.0, 1.0)
    with pytest.raises(InvalidActionError, match="one of U, U'"):
        CubeGame(turned("R"), moves_per_turn=1).act("R', R")


def test_progress_falls_and_rises_with_the_distance() -> None:
    game = CubeGame(turned("R U"), moves_per_turn=1)
    assert game.progress() == 0.0
    game.act("U'")
    assert game.progress() == 0.5
    game.act("F")
    assert game.progress() == 0.0
    assert game.view().startswith("U: W ")
