from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from clients.demonstrators import DEMONSTRATORS
from clients.demonstrators.noisy_oracle import NoisyOracle
from clients.demonstrators.rooms import Room, Walk
from clients.demonstrators.wall_follower import WallFollower
from clients.demonstrators.wanderer import Wanderer
from clients.policies.base import TextAction, TextPolicy
from longturn.records import StepResult
from tests.clients.demonstrators.maze import REFUSED, junctions, walk


def play(policy: TextPolicy, *, seed: int = 0, num_rooms: int = 6, num_turns: int = 60) -> list[tuple[str, TextAction]]:
    return asyncio.run(walk(policy.begin(seed), junctions(num_rooms), num_turns=num_turns))


def test_a_sure_wall_follower_finds_the_coin_and_takes_it() -> None:
    turns = play(WallFollower(follow_probability=1.0, noise=0.0))
    assert turns[-1][1] == TextAction(action="take coin", reasoning="coin")


@pytest.mark.parametrize("policy", [WallFollower(), Wanderer()])
def test_equal_seeds_walk_equally_and_others_differ(policy: TextPolicy) -> None:
    assert play(policy, seed=3) == play(policy, seed=3)
    assert play(policy, seed=3) != play(policy, seed=4)


def test_noise_is_shown_but_not_imitated() -> None:
    turns = [turn for seed in range(40) for turn in play(Wanderer(noise=0.25), seed=seed)]
    share = sum(not action.is_trained for _, action in turns) / len(turns)
    assert 0.15 < share < 0.35
    assert all(action.is_trained for _, action in play(Wanderer(noise=0.0)))


def test_a_wanderer_never_turns_back_except_out_of_a_dead_end() -> None:
    for seed in range(20):
        for observation, action in play(Wanderer(noise=0.0), seed=seed):
            came_from = action.reasoning.partition(" from ")[2].partition(" ")[0]
            if observation.count("exit") > 1 and action.action != "take coin":
                assert action.action != f"go {came_from}"


def test_a_wanderer_does_as_it_plans_and_plans_by_flipping_a_coin() -> None:
    choices: Counter[tuple[str, str]] = Counter()
    for seed in range(60):
        turns = play(Wanderer(noise=0.0), seed=seed)
        for (_, before), (_, action) in itertools.pairwise(turns):
            if before.reasoning == "exits east from east via south" and "coin" not in action.reasoning:
                choices[action.reasoning.partition("from west ")[2], action.action] += 1
    assert set(choices) == {("onward north", "go north"), ("return south", "go south")}
    assert 0.3 < choices["return south", "go south"] / choices.total() < 0.7


def test_a_wanderer_makes_no_plan_where_it_has_no_choice() -> None:
    reasonings = {action.reasoning for seed in range(20) for _, action in play(Wanderer(noise=0.0), seed=seed)}
    assert {"exits north west from west", "exits north west from north"} <= reasonings


def test_a_wanderer_that_never_returns_finds_the_coin_and_one_that_always_does_so_rarely() -> None:
    found = {
        share: sum(
            play(Wanderer(return_probability=share, noise=0.0), seed=seed, num_rooms=8, num_turns=30)[-1][1].action
            == "take coin"
            for seed in range(40)
        )
        for share in (0.0, 1.0)
    }
    assert found[0.0] == 40
    assert found[1.0] < 12


def test_in_a_dead_end_a_wanderer_notes_how_it_entered_the_room_before() -> None:
    reasonings = {action.reasoning for seed in range(20) for _, action in play(Wanderer(noise=0.0), seed=seed)}
    assert {"exits east from east via south", "exits east from east via north"} <= reasonings
    assert not any(" via " in action.reasoning for _, action in play(WallFollower()))


def test_a_refused_move_leaves_the_room_as_it_was() -> None:
    walk = Walk()
    walk.read("-= Hall =-\nexits north, east")
    walk.move("north")
    walk.read("-= Vault =-\nexit south, exit west")
    walk.move("north")
    walk.read(REFUSED)
    assert walk.here == Room(exits=("south", "west"), came_from="south", entry="south")


def test_the_room_name_is_not_read_for_exits() -> None:
    walk = Walk()
    walk.read("-= North Hall =-\nThere is an exit to the east.")
    assert walk.here.exits == ("east",)


def test_two_dead_ends_in_a_row_keep_the_first_entry() -> None:
    walk = Walk()
    steps = (("A", "north", "north"), ("B", "south east west", "east"), ("C", "west", "west"))
    for room, exits, move in (*steps, ("B", "south east west", "west"), ("D", "east", "east")):
        walk.read(f"-= {room} =-\n{exits}")
        walk.move(move)
    walk.read("-= B =-\nsouth east west")
    assert walk.here == Room(exits=("south", "east", "west"), came_from="west", entry="south", is_after_dead_end=True)


def test_a_noisy_oracle_marks_its_mistakes() -> None:
    async def main() -> list[TextAction]:
        player = NoisyOracle(noise=0.5).begin(1)
        result = StepResult(observation="", oracle_action="go east", admissible_actions=("go east", "go west"))
        return [await player.act(result) for _ in range(40)]

    actions = asyncio.run(main())
    assert {(action.action, action.is_trained) for action in actions} == {("go east", True), ("go west", False)}


@pytest.mark.parametrize("name", sorted(DEMONSTRATORS))
def test_a_share_outside_its_range_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="noise must lie in"):
        DEMONSTRATORS[name](noise=1.5)
