"""FrozenLake: the published rule of movement, generated maps and the sure ways."""

from collections import Counter

import pytest

from env_server.environments.frozen_lake import FrozenLakeEnvironment, FrozenLakeGame
from env_server.environments.frozen_lake_maps import DIRECTIONS, Lake, make_lake
from env_server.environments.generated_tasks import private_random

# Gymnasium's own 4x4 map: SFFF / FHFH / FFFH / HFFG.
GYMNASIUM_4X4 = frozenset({5, 7, 11, 12})
LEFT, DOWN, RIGHT, UP = range(4)


def published_transitions(cell: int, action: int, *, is_slippery: bool) -> Counter[int]:
    """FrozenLake-v1's table as its documentation states it: thirds (out of 3) of the chance to land on each cell.

    Moving off the edge stays; slippery ice moves as intended or to either side with a third each.
    """
    row, column = divmod(cell, 4)
    landed: Counter[int] = Counter()
    for turned in ((action - 1) % 4, action, (action + 1) % 4) if is_slippery else (action,):
        to_row = min(row + 1, 3) if turned == DOWN else max(row - 1, 0) if turned == UP else row
        to_column = min(column + 1, 3) if turned == RIGHT else max(column - 1, 0) if turned == LEFT else column
        landed[4 * to_row + to_column] += 1 if is_slippery else 3
    return landed


@pytest.mark.parametrize(("slip", "is_slippery"), [(2 / 3, True), (0.0, False)])
def test_moves_lead_where_the_published_rule_says(slip: float, is_slippery: bool) -> None:
    lake = Lake(4, GYMNASIUM_4X4, slip)
    for cell in range(16):
        for action, direction in enumerate(DIRECTIONS):
            landed: Counter[int] = Counter()
            for outcome in lake.outcomes(cell, direction):
                landed[outcome.cell] += round(3 * outcome.probability)
                assert outcome.probability * 3 == pytest.approx(round(3 * outcome.probability))
            assert landed == published_transitions(cell, action, is_slippery=is_slippery)


def test_slips_come_as_often_as_they_should() -> None:
    landed: Counter[int] = Counter()
    for seed in range(800):
        lake = Lake(4, frozenset(), 0.4)
        game = FrozenLakeGame(lake, private_random(seed), observation="grid", moves_per_turn=2)
        game.act("down")
        landed[game.view()[5] == "P"] += 1
    # From the first cell: down as intended 0.6; right 0.2 and left 0.2 (which stays) by slipping.
    assert landed[True] / 800 == pytest.approx(0.6, abs=0.05)


def test_the_goal_wins_and_a_hole_loses() -> None:
    def game() -> FrozenLakeGame:
        lake = Lake(4, GYMNASIUM_4X4, 0.0)
        return FrozenLakeGame(lake, private_random(0), observation="grid", moves_per_turn=10)

    lost = game()
    assert lost.act("right, down, right").endswith("You fall into a hole. You lose.")
    assert (lost.is_lost, lost.is_won, lost.score) == (True, False, 0.0)
    assert lost.view() == "____\n_X_O\n___O\nO__G"
    won = game()
    assert won.act("down, down, right, right, down, right") == "You move. " * 5 + "You reach the goal. You win."
    assert (won.is_won, won.score, won.progress()) == (True, 1.0, 1.0)
    stayed = game()
    assert stayed.act("left") == "You stay where you are."


def test_coordinates_tell_the_same_as_the_grid() -> None:
    lake = Lake(4, GYMNASIUM_4X4, 0.0)
    game = FrozenLakeGame(lake, private_random(0), observation="coordinates", moves_per_turn=1)
    assert "Goal: (4,4) Holes: (2,2) (2,4) (3,4) (4,1)" in game.rules
    game.act("down")
    assert game.view() == "You: (2,1)"
    both = FrozenLakeGame(lake, private_random(0), observation="both", moves_per_turn=1)
    assert both.view() == "You: (1,1)\nP___\n_O_O\n___O\nO__G"


@pytest.mark.parametrize("slip", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("size", [4, 8, 12])
def test_a_sure_way_meets_no_hole_whatever_slips(size: int, slip: float) -> None:
    lake = make_lake(private_random(size), size=size, frozen=0.7, slip=slip)
    assert lake.holes
    assert 0 in lake.sure_moves
    for cell, move in lake.sure_moves.items():
        for outcome in lake.outcomes(cell, move):
            assert outcome.cell == lake.goal or outcome.cell in lake.sure_moves
    cell, num_moves = 0, 0
    while cell != lake.goal:
        cell = lake.neighbour(cell, lake.sure_moves[cell])
        num_moves += 1
    assert num_moves < size**2


def test_without_slipping_the_sure_way_is_the_shortest() -> None:
    lake = Lake(4, GYMNASIUM_4X4, 0.0)
    distances = lake.distances()
    for cell, move in lake.sure_moves.items():
        assert distances[lake.neighbour(cell, move)] == distances[cell] - 1


def test_gymnasiums_own_map_has_no_sure_way_when_it_is_slippery() -> None:
    assert 0 not in Lake(4, GYMNASIUM_4X4, 2 / 3).sure_moves


def test_the_oracle_wins_on_very_slippery_ice() -> None:
    environment = FrozenLakeEnvironment()
    for index in range(8):
        transition = environment.reset(f"frozen_lake/size=6,frozen=0.8,slip=0.667/train/{index:06d}", index, {})
        for _ in range(environment.spec.max_turns):
            transition = environment.step(environment.oracle() or "")
            if transition.is_terminal:
                break
        assert transition.success
