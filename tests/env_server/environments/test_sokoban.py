"""Sokoban: rules, generated rooms, the solver and its bound."""

import random

import pytest

from env_server.environments.generated_tasks import private_random
from env_server.environments.grid import DIRECTIONS
from env_server.environments.puzzle import InvalidActionError
from env_server.environments.sokoban import SokobanEnvironment, SokobanGame
from env_server.environments.sokoban_rooms import Room, make_room
from env_server.environments.sokoban_solver import Solver, push_distances

CORRIDOR = """
#######
#@$_._#
#######
"""
TWO_BOXES = """
#######
#@$$.._#
#######
"""
CORNER = """
#####
#.__#
#_$_#
#__@#
#####
"""
FEWEST_PUSHES = """
########
#______#
#_@$___#
#__$#__#
#__.___#
#.#____#
#______#
########
"""


def room_of(text: str) -> Room:
    """A room drawn in the symbols of the grid, made square with walls."""
    lines = text.strip().splitlines()
    size = max(len(lines), *map(len, lines))
    cells = "".join(line.ljust(size, "#") for line in lines).ljust(size * size, "#")

    def where(symbols: str) -> frozenset[int]:
        return frozenset(at for at, symbol in enumerate(cells) if symbol in symbols)

    [player] = where("@+")
    return Room(
        size=size, floor=where("_.$*@+"), targets=where(".*+"), boxes=where("$*"), player=player, solution=()
    )  # fmt: skip


def game_of(text: str, *, observation: str = "grid", moves_per_turn: int = 1) -> SokobanGame:
    return SokobanGame(room_of(text), observation=observation, moves_per_turn=moves_per_turn)


def solver_of(room: Room, max_states: int = 100_000) -> Solver:
    return Solver(floor=room.floor, targets=room.targets, size=room.size, max_states=max_states)


def test_a_box_is_pushed_onto_its_target_and_shown_there() -> None:
    game = game_of(CORRIDOR)
    assert "#@$_._#" in game.view()
    assert game.act("right") == "You push a box."
    assert "#_@$._#" in game.view()
    assert game.act(" RIGHT. ").endswith("You win.")
    assert "#__@*_#" in game.view()
    assert (game.is_won, game.score) == (True, 1.0)


def test_walls_and_second_boxes_block_and_boxes_are_not_pulled() -> None:
    game = game_of(TWO_BOXES)
    for action in ("up", "left", "right"):
        with pytest.raises(InvalidActionError, match="blocked"):
            game.act(action)
    game = game_of(CORRIDOR)
    game.act("right")
    assert game.act("left") == "You walk."
    assert "#@_$._#" in game.view()
    assert game.admissible_actions() == ("right",)


def test_a_box_may_be_pushed_off_its_target_and_the_score_falls() -> None:
    game = game_of("#######\n#_@*$._#\n#__.___#\n#######")
    start = game.view()
    with pytest.raises(InvalidActionError):
        game.act("right")
    assert game.view() == start
    game = game_of("########\n#_@$._.#\n#__$___#\n########")
    game.act("right")
    assert game.score == 0.5
    game.act("right")
    assert game.score == 0.0


def test_several_moves_stand_in_one_action_only_as_far_as_the_knob_says() -> None:
    game = game_of(CORRIDOR, moves_per_turn=3)
    assert (
        game.act("up, right,Right")
        == "The way is blocked. You push a box. You push a box. Every box is on a target. You win."
    )
    game = game_of(CORRIDOR, moves_per_turn=3)
    for action in ("right, right, left, left", "right, jump", "right,, right"):
        with pytest.raises(InvalidActionError, match="1 to 3 of up"):
            game.act(action)
    with pytest.raises(InvalidActionError, match="one of up"):
        game_of(CORRIDOR).act("right, right")


def test_coordinates_tell_the_same_as_the_grid() -> None:
    game = game_of(CORNER, observation="both")
    assert game.view().startswith("You: (4,4)\nBoxes: (3,3)\nTargets: (2,2)\n#####\n#.__#")
    assert "Walls: (1,1) (1,2)" in game.rules
    game = game_of(CORNER, observation="coordinates")
    game.act("up")
    assert game.view() == "You: (3,4)\nBoxes: (3,3)\nTargets: (2,2)"


def test_the_oracle_gives_up_where_a_box_is_stuck() -> None:
    game = game_of(CORNER)
    assert game.expert_action() is not None
    for action in ("left", "up", "right", "up", "left", "left"):
        if action in game.admissible_actions():
            game.act(action)
    stuck = game_of("#####\n#$__#\n#_._#\n#_@_#\n#####")
    assert stuck.expert_action() is None
    assert stuck.progress() == 0.0


def test_the_oracle_finds_a_new_plan_after_other_moves() -> None:
    environment = SokobanEnvironment()
    draw = random.Random(3)
    num_solved = 0
    for info in environment.tasks("train", 0, 10):
        transition = environment.reset(info.task_id, 0, {"admissible_actions": True})
        for _ in range(6):
            transition = environment.step(draw.choice(transition.admissible_actions or ("up",)))
        while (action := environment.oracle()) is not None and not transition.is_terminal:
            transition = environment.step(action)
        num_solved += transition.success
    assert num_solved > 3


def test_the_solver_needs_the_fewest_pushes() -> None:
    room = room_of(FEWEST_PUSHES)
    moves = solver_of(room).solve(room.boxes, room.player)
    assert moves is not None
    assert _num_pushes(room, moves) == _fewest_pushes_by_trying_all(room)


def test_beyond_the_bound_the_room_as_generated_is_still_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env_server.environments.sokoban.MAX_ORACLE_STATES", 1)
    environment = SokobanEnvironment()
    transition = environment.reset("sokoban/size=8,boxes=3,depth=30/train/000001", 0, {})
    while not transition.is_terminal:
        transition = environment.step(environment.oracle() or "")
    assert transition.success
    environment.reset("sokoban/size=8,boxes=3,depth=30/train/000000", 0, {})
    assert environment.step(_other_action(environment)).action_valid
    assert environment.oracle() is None


@pytest.mark.parametrize(("size", "num_boxes"), [(5, 1), (5, 2), (9, 1), (9, 4), (14, 1), (14, 6)])
def test_rooms_are_solved_by_their_construction(size: int, num_boxes: int) -> None:
    rooms = [make_room(private_random(number), size=size, num_boxes=num_boxes, depth=25) for number in range(12)]
    made = [room for room in rooms if room is not None]
    assert len(made) > 2
    for room in made:
        assert not room.boxes & room.targets
        assert room.player in room.floor - room.boxes
        game = SokobanGame(room, observation="grid", moves_per_turn=1)
        for move in room.solution:
            assert not game.is_won
            game.act(move)
        assert game.is_won


def test_deeper_reverse_walks_make_longer_solutions() -> None:
    lengths = [
        sum(_solution_length(f"sokoban/size=8,boxes=1,depth={depth}/train/{index:06d}") for index in range(10))
        for depth in (1, 40)
    ]
    assert lengths[1] > 2 * lengths[0]


def test_push_distances_leave_dead_cells_out() -> None:
    room = room_of(CORNER)
    distances = push_distances(room.floor, room.targets, room.size)
    [target] = room.targets
    assert distances[target] == 0
    assert distances[target + 1] == 1
    assert {16, 17, 18, 8, 13}.isdisjoint(distances)  # along the far walls, from which no box comes back


def _num_pushes(room: Room, moves: list[str]) -> int:
    game = SokobanGame(room, observation="grid", moves_per_turn=1)
    answers = [game.act(move) for move in moves]
    assert game.is_won
    return sum(answer.startswith("You push") for answer in answers)


def _fewest_pushes_by_trying_all(room: Room) -> int:
    """Plain search over single moves, cheapest pushes first."""
    steps = (-room.size, room.size, -1, 1)
    layers = [{(room.player, room.boxes)}]
    seen = set(layers[0])
    for num_pushes in range(60):
        stack, pushed = list(layers[-1]), set[tuple[int, frozenset[int]]]()
        while stack:
            player, boxes = stack.pop()
            if boxes == room.targets:
                return num_pushes
            for step in steps:
                ahead, behind = player + step, player + 2 * step
                if ahead in boxes and behind in room.floor - boxes:
                    pushed.add((ahead, boxes - {ahead} | {behind}))
                elif ahead in room.floor - boxes and (ahead, boxes) not in seen:
                    seen.add((ahead, boxes))
                    stack.append((ahead, boxes))
        layers.append(pushed - seen)
        seen |= pushed
    raise AssertionError("no solution")


def _solution_length(task_id: str) -> int:
    environment = SokobanEnvironment()
    transition = environment.reset(task_id, 0, {})
    num_turns = 0
    while not transition.is_terminal:
        transition = environment.step(environment.oracle() or "")
        num_turns += 1
    return num_turns


def _other_action(environment: SokobanEnvironment) -> str:
    """A direction that the oracle does not propose and in which there is a way."""
    expected = environment.oracle()
    copy = SokobanEnvironment()
    copy.reset("sokoban/size=8,boxes=3,depth=30/train/000000", 0, {})
    return next(move for move in DIRECTIONS if move != expected and copy.step(move).action_valid)
