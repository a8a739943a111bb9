"""Bandit: pays, choices and names."""

from collections import Counter

import pytest

from env_server.environments.bandit import Arm, BanditEnvironment, BanditGame, plain_arms, symbolic_arms
from env_server.environments.generated_tasks import SPLITS, private_random
from env_server.environments.puzzle import InvalidActionError

ARMS = (Arm("amber", 0.75, 1.0), Arm("birch", 0.25, 1.0), Arm("cedar", 1.0, 0.1))


def test_arms_pay_as_often_as_they_should() -> None:
    game = BanditGame(ARMS, private_random(0), num_pulls=6000)
    pays: Counter[str] = Counter(game.act(f"pull {name}") for name in ("amber", "birch", "cedar") for _ in range(2000))
    assert pays["amber pays 1."] / 2000 == pytest.approx(0.75, abs=0.03)
    assert pays["birch pays 1."] / 2000 == pytest.approx(0.25, abs=0.03)
    assert pays["cedar pays 0.1."] == 2000


def test_pulls_run_out_and_a_choice_ends_the_game() -> None:
    game = BanditGame(ARMS, private_random(0), num_pulls=1)
    game.act("Pull  Birch.")
    assert game.view() == "Pulls left: 0."
    assert game.admissible_actions() == ("choose amber", "choose birch", "choose cedar")
    with pytest.raises(InvalidActionError, match="No pulls are left"):
        game.act("pull birch")
    assert game.act("choose birch") == "amber is the best arm. You lose."
    assert (game.is_lost, game.score, game.admissible_actions()) == (True, 0.0, ())
    game = BanditGame(ARMS, private_random(0), num_pulls=1)
    assert game.act("choose amber").endswith("You win.")
    assert (game.is_won, game.score) == (True, 1.0)


@pytest.mark.parametrize("action", ["amber", "pull", "pull x", "choose", "choose amber birch", "take amber"])
def test_other_actions_are_refused(action: str) -> None:
    with pytest.raises(InvalidActionError, match="pull NAME, or choose NAME"):
        BanditGame(ARMS, private_random(0), num_pulls=5).act(action)


@pytest.mark.parametrize("gap", [0.1, 0.3, 0.5])
def test_the_best_plain_arm_is_ahead_by_the_gap(gap: float) -> None:
    for number in range(50):
        chances = sorted(arm.chance for arm in plain_arms(private_random(number), num_arms=4, gap=gap))
        assert chances[-1] - chances[-2] >= gap - 1e-9


def test_the_place_of_the_best_arm_tells_nothing() -> None:
    places: Counter[int] = Counter()
    for number in range(400):
        arms = plain_arms(private_random(number), num_arms=4, gap=0.3)
        places[max(range(4), key=lambda at: arms[at].chance)] += 1
    assert min(places.values()) > 60


def test_the_risky_trade_is_the_best_and_splits_share_no_name() -> None:
    names: dict[str, set[str]] = {}
    for split in SPLITS:
        for number in range(60):
            arms = symbolic_arms(private_random(number), num_arms=5, split=split)
            names.setdefault(split, set()).update(arm.name for arm in arms)
            [risky] = [arm for arm in arms if arm.chance < 1.0]
            assert risky.chance * risky.pay > max(arm.chance * arm.pay for arm in arms if arm is not risky)
    assert not names["train"] & names["valid"] | names["train"] & names["test"] | names["valid"] & names["test"]


def test_ragens_single_choice_is_a_kind() -> None:
    environment = BanditEnvironment()
    first = environment.reset("bandit/arms=2,pulls=0,gap=0.3,names=symbolic/test/000000", 0, {})
    assert "0 times" in first.observation
    assert environment.step(environment.oracle() or "").success
