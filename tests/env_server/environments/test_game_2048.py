"""2048: slides, merges, new tiles and the end."""

from collections import Counter

import pytest

from env_server.environments.game_2048 import GOALS, Game2048, Game2048Environment
from env_server.environments.game_2048_rules import (
    Board,
    Row,
    empty_cells,
    possible_moves,
    slide,
    slide_left,
    slide_right,
)
from env_server.environments.generated_tasks import private_random
from env_server.environments.puzzle import InvalidActionError

STUCK: Board = ((1, 2, 1, 2), (2, 1, 2, 1), (1, 2, 1, 2), (2, 1, 2, 0))


@pytest.mark.parametrize(
    ("row", "slid"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0)),
        ((0, 0, 0, 1), (1, 0, 0, 0)),
        ((1, 1, 1, 1), (2, 2, 0, 0)),
        ((1, 1, 2, 0), (2, 2, 0, 0)),
        ((1, 1, 1, 0), (2, 1, 0, 0)),
        ((1, 0, 0, 1), (2, 0, 0, 0)),
        ((2, 1, 1, 0), (2, 2, 0, 0)),
        ((3, 2, 1, 1), (3, 2, 2, 0)),
        ((1, 2, 3, 4), (1, 2, 3, 4)),
    ],
)
def test_equal_neighbours_merge_once(row: Row, slid: Row) -> None:
    assert slide_left(row) == slid
    assert slide_right(row[::-1]) == slid[::-1]


def test_a_slide_goes_in_its_direction() -> None:
    board: Board = ((1, 0, 0, 1), (0, 0, 0, 0), (0, 2, 0, 0), (1, 0, 0, 2))
    assert slide(board, "left") == ((2, 0, 0, 0), (0, 0, 0, 0), (2, 0, 0, 0), (1, 2, 0, 0))
    assert slide(board, "right") == ((0, 0, 0, 2), (0, 0, 0, 0), (0, 0, 0, 2), (0, 0, 1, 2))
    assert slide(board, "up") == ((2, 2, 0, 1), (0, 0, 0, 2), (0, 0, 0, 0), (0, 0, 0, 0))
    assert slide(board, "down") == ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (2, 2, 0, 2))


def test_a_tile_appears_after_a_move_and_nine_in_ten_are_2s() -> None:
    tiles: Counter[int] = Counter()
    for seed in range(500):
        board: Board = ((0, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
        game = Game2048(board, private_random(seed), goal=64, moves_per_turn=1)
        game.act("left")
        shown = game.view().split()
        assert shown[0] == "2"
        [tile] = [text for text in shown[1:] if text != "."]
        tiles[int(tile)] += 1
    assert set(tiles) == {2, 4}
    assert tiles[4] / 500 == pytest.approx(0.1, abs=0.04)


def test_a_move_without_effect_is_invalid_and_brings_no_tile() -> None:
    board: Board = ((1, 2, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    game = Game2048(board, private_random(0), goal=64, moves_per_turn=1)
    state = game.state()
    with pytest.raises(InvalidActionError, match="Nothing moves"):
        game.act("left")
    assert game.state() == state
    assert set(game.admissible_actions()) == {"right", "down"}


def test_the_goal_wins_and_no_move_loses() -> None:
    board: Board = ((3, 3, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    game = Game2048(board, private_random(0), goal=16, moves_per_turn=3)
    assert game.act("left, left, left") == "The tile is there. You win."
    assert (game.is_won, game.score, game.progress()) == (True, 1.0, 1.0)
    assert game.view() == "16 . . .\n2 . . .\n. . . .\n. . . ."
    lost = Game2048(STUCK, private_random(1), goal=2048, moves_per_turn=1)
    answer = ""
    while not lost.is_lost:
        answer = lost.act(lost.admissible_actions()[0])
    assert answer == "Nothing can move. You lose."
    assert (lost.is_won, lost.admissible_actions()) == (False, ())
    assert "." not in lost.view()


def test_the_score_counts_doublings_of_the_largest_tile() -> None:
    board: Board = ((1, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    game = Game2048(board, private_random(0), goal=32, moves_per_turn=1)
    game.act("left")
    assert game.score == 0.25


@pytest.mark.parametrize("goal", GOALS)
def test_there_is_an_oracle_only_where_it_always_wins(goal: str) -> None:
    environment = Game2048Environment()
    environment.reset(f"game_2048/goal={goal}/train/000000", 0, {})
    assert (environment.oracle() is not None) == (int(goal) <= 256)


def test_first_boards_have_two_tiles() -> None:
    for index in range(20):
        text = Game2048Environment().reset(f"game_2048/goal=256/train/{index:06d}", 0, {}).observation
        assert sum(word in ("2", "4") for word in text.rpartition("\n\n")[2].split()) == 2


def test_helpers_see_the_same_board() -> None:
    assert empty_cells(STUCK) == [(3, 3)]
    assert set(possible_moves(STUCK)) == {"right", "down"}
