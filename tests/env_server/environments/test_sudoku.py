"""Sudoku: boards with one solution, and what may be written."""

from collections import Counter
from itertools import islice

import pytest

from env_server.environments.generated_tasks import SPLITS, private_random, split_of_layout
from env_server.environments.puzzle import InvalidActionError
from env_server.environments.sudoku import NUM_GIVENS, SudokuEnvironment, SudokuGame
from env_server.environments.sudoku_boards import layout, make_solution, peers, solutions, take_givens

SOLUTION = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
GIVENS = (1, 0, 3, 4, 3, 4, 0, 2, 2, 1, 4, 3, 4, 3, 2, 1)


def test_all_288_boards_of_size_4_are_found() -> None:
    boards = list(solutions([0] * 16))
    assert len(set(boards)) == len(boards) == 288
    layouts = {layout(board) for board in boards}
    assert len(layouts) == 12
    assert {split_of_layout(text) for text in layouts} == set(SPLITS)


@pytest.mark.parametrize(("size", "difficulty"), [(size, level) for size in NUM_GIVENS for level in NUM_GIVENS[size]])
def test_boards_have_one_solution_and_as_many_givens_as_said(size: str, difficulty: str) -> None:
    rng = private_random(size, difficulty)
    solution = make_solution(rng, int(size))
    givens = take_givens(rng, solution, NUM_GIVENS[size][difficulty])
    assert sum(map(bool, givens)) == NUM_GIVENS[size][difficulty]
    assert list(islice(solutions(list(givens)), 2)) == [solution]
    assert all(solution[peer] != digit for cell, digit in enumerate(solution) for peer in peers(int(size))[cell])


def test_every_board_of_size_4_can_be_made_hard() -> None:
    for board in {layout(board): board for board in solutions([0] * 16)}.values():
        assert sum(map(bool, take_givens(private_random(board), board, 6))) == 6


def test_digits_are_written_refused_and_cleared() -> None:
    game = SudokuGame(GIVENS, SOLUTION)
    assert game.view() == "1 . | 3 4\n3 4 | . 2\n----+----\n2 1 | 4 3\n4 3 | 2 1"
    for action, answer in (
        ("1 1 2", "is given"),
        ("1 1 0", "is given"),
        ("1 2 0", "there already"),
        ("1 2 4", "already in the row, column or box"),
        ("1 2 5", "Not an action"),
        ("1 2", "Not an action"),
        ("5 1 1", "Not an action"),
        ("1 2 3 4", "Not an action"),
    ):
        with pytest.raises(InvalidActionError, match=answer):
            game.act(action)
    assert game.act(" 1, 2,2. ") == "You write the digit."
    assert game.progress() == 0.5
    assert game.act("1 2 0") == "You clear the cell."
    game.act("1 2 2")
    assert game.act("2 3 1") == "The board is full. You win."
    assert (game.is_won, game.score) == (True, 1.0)


def test_the_oracle_mends_wrong_digits() -> None:
    environment = SudokuEnvironment()
    transition = environment.reset("sudoku/size=9,difficulty=hard/train/000000", 0, {"admissible_actions": True})
    kinds: Counter[bool] = Counter()
    for action in (transition.admissible_actions or ())[::9]:
        kinds[environment.step(action).action_valid] += 1
    assert kinds[True] > 5
    for _ in range(200):
        transition = environment.step(environment.oracle() or "")
        assert transition.action_valid
        if transition.is_terminal:
            break
    assert transition.success


def test_boards_that_differ_by_the_names_of_digits_are_one_layout() -> None:
    renamed = tuple(5 - digit for digit in SOLUTION)
    assert layout(renamed) == layout(SOLUTION)
