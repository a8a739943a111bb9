"""TextWorldExpress's games in its own simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from env_server.environment import Transition
from env_server.environments.textworld_express import TextWorldExpressEnvironment
from env_server.environments.textworld_express_tasks import GAMES, SPLITS
from tests.env_server.loopback import loopback

pytestmark = pytest.mark.java

FIRST = {task.kind: task.task_id for task in TextWorldExpressEnvironment.tasks("train", 0, len(GAMES))}


@pytest.fixture
def environment() -> Iterator[TextWorldExpressEnvironment]:
    made = TextWorldExpressEnvironment()
    yield made
    made.close()


def play_oracle(environment: TextWorldExpressEnvironment, task_id: str) -> Iterator[Transition]:
    yield environment.reset(task_id, 0, {"admissible_actions": True, "look": True, "inventory": True})
    for _ in range(200):
        action = environment.oracle()
        if action is None:
            return
        yield environment.step(action)


@pytest.mark.timeout(300)
def test_gold_paths_win_all_games_in_every_split_through_the_server() -> None:
    async def main() -> list[tuple[str, str, float]]:
        lost: list[tuple[str, str, float]] = []
        async with loopback("textworld_express") as client:
            for split in SPLITS:
                for task in TextWorldExpressEnvironment.tasks(split, 0, 2 * len(GAMES)):
                    player = await client.start("textworld_express", task_id=task.task_id, with_oracle=True)
                    result = player.first
                    while result.oracle_action:
                        result = await player.step(result.oracle_action)
                    if not result.success or result.score != 1.0:
                        lost.append((task.task_id, result.observation, result.score))
        return lost

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_the_same_alone_and_beside_itself(game: str) -> None:
    environments = [TextWorldExpressEnvironment() for _ in range(3)]
    alone = list(play_oracle(environments[0], FIRST[game]))
    assert alone[-1].success
    beside = zip(*(play_oracle(environment, FIRST[game]) for environment in environments), strict=True)
    for expected, transitions in zip(alone, beside, strict=True):
        assert set(map(repr, transitions)) == {repr(expected)}
    for environment in environments:
        environment.close()


def test_simon_says_is_lost_by_what_simon_did_not_say(environment: TextWorldExpressEnvironment) -> None:
    first = environment.reset(FIRST["simonsays"], 0, {"admissible_actions": True})
    wanted = environment.oracle()
    assert first.admissible_actions
    lost = environment.step(next(action for action in first.admissible_actions if action != wanted))
    assert (lost.is_terminal, lost.success, lost.score) == (True, False, -1.0)


@pytest.mark.parametrize("action", ["", "xyzzy", "\x00", "\ud800", "take\ncoin", "a" * 10_000, "［look around］"])
def test_an_action_that_is_not_understood_changes_nothing(
    action: str, environment: TextWorldExpressEnvironment
) -> None:
    environment.reset(FIRST["coin"], 0, {})
    wanted = environment.oracle()
    answered = environment.step(action)
    assert not answered.action_valid
    assert answered.observation.startswith("Unknown action")
    assert environment.oracle() == wanted


def test_spaces_case_and_a_full_stop_do_not_matter(environment: TextWorldExpressEnvironment) -> None:
    first = environment.reset(FIRST["coin"], 0, {})
    assert first.observation.endswith(environment.step(" Look   around. ").observation)


def test_parameters_of_the_id_make_the_game(environment: TextWorldExpressEnvironment) -> None:
    def look(doors: str) -> str:
        task_id = f"coin/locations=5,distractors=0,doors={doors},limit=true/test/000007"
        return environment.reset(task_id, 0, {}).observation

    assert "closed" in look("true").splitlines()[-1]
    assert "closed" not in look("false").splitlines()[-1]


@pytest.mark.parametrize("game", [game for game, parameters in GAMES.items() if parameters])
@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_every_parameter_may_have_its_least_and_its_greatest_value(
    game: str, bound: str, environment: TextWorldExpressEnvironment
) -> None:
    for spec in GAMES[game]:
        if spec.kind == "int":
            filters = {"game": game, spec.name: str(getattr(spec, bound))}
            (task,) = environment.tasks("dev", 0, 1, filters)
            assert environment.reset(task.task_id, 0, {}).observation
