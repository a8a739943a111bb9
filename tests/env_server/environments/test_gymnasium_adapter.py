"""Environments of Gymnasium behind the protocol."""

import asyncio

import pytest

from clients.conformance.pytest_suite import ConformanceTests
from clients.conformance.subject import SuiteOptions
from env_server.environment import EnvironmentBrokenError, TaskNotFoundError
from env_server.environments.gymnasium_adapter import NO_ACTION, gymnasium_environment, spelled_colours
from env_server.registry import load
from longturn.errors import ConfigError
from tests.env_server.environments.gymnasium_samples import COUNTING
from tests.env_server.loopback import loopback, start_request

LAKE = "FrozenLake-v1"


class TestCounting(ConformanceTests):
    environment = f"gymnasium:{COUNTING}"
    options = SuiteOptions(tasks_per_split=1, num_random_episodes=4, num_neighbours=16, num_resets=200, seconds=3.0)


class TestTaxi(ConformanceTests):
    environment = "gymnasium:Taxi-v4"
    options = SuiteOptions(tasks_per_split=1, num_random_episodes=4, num_neighbours=16, num_resets=200, seconds=3.0)


def test_a_lake_is_drawn_in_plain_text_and_walked_by_numbers() -> None:
    environment = gymnasium_environment(LAKE)()
    first = environment.reset(f"{LAKE}/train/000007", 0, {"admissible_actions": True})
    assert first.observation == "[S red]FFF\nFHFH\nFFFH\nHFFG"
    assert first.admissible_actions == ("0", "1", "2", "3")
    assert environment.step(" 1. ").observation.startswith("  (Down)\n")
    refused = environment.step("4")
    assert not refused.action_valid
    assert refused.observation.startswith(NO_ACTION)
    environment.close()


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        ("a\x1b[41mS\x1b[0mb", "a[S red]b"),
        ("\x1b[34;1mR\x1b[0m", "[R blue]"),
        ("\x1b[35m\x1b[43mR\x1b[0m\x1b[0m|", "[[R yellow] magenta]|"),
        ("\x1b[1mbold\x1b[0m", "bold"),
    ],
)
def test_colours_are_spelled(drawn: str, text: str) -> None:
    assert spelled_colours(drawn) == text


def test_what_a_mask_forbids_is_not_listed() -> None:
    environment = gymnasium_environment("Taxi-v4")()
    listed = environment.reset("Taxi-v4/train/000000", 0, {"admissible_actions": True}).admissible_actions
    assert listed is not None
    assert 0 < len(listed) < 6
    environment.close()


def test_an_environment_that_speaks_is_won_where_it_says_so() -> None:
    environment = gymnasium_environment(COUNTING)()
    assert environment.reset("longturn/Counting-v0/valid/000003", 9, {}).observation == "Count to 3. Seed 1000003."
    told = [environment.step(action) for action in ("1", "1", "\x00", "2", "3")]
    assert [transition.action_valid for transition in told] == [True, True, False, True, True]
    assert (told[-1].success, told[-1].is_terminal, round(told[-1].score, 6)) == (True, True, 1.0)
    assert environment.spec.max_turns == 20
    environment.close()


def test_a_server_serves_it_by_its_id() -> None:
    async def main() -> None:
        async with loopback(f"gymnasium:{LAKE}") as client:
            request = start_request(f"gymnasium:{LAKE}", task_id=f"{LAKE}/test/000000")
            started = await client.stub.StartEpisode(request, timeout=60.0)
            assert started.result.observation.startswith("[S red]FFF")
            assert started.max_turns == 100

    asyncio.run(main())


def test_what_cannot_be_played_in_text_is_refused() -> None:
    with pytest.raises(EnvironmentBrokenError, match="no text, nor drawn as text"):
        gymnasium_environment("CartPole-v1")
    with pytest.raises(ConfigError, match=r"did you mean .*Taxi"):
        load("gymnasium:Taxi-v44")
    with pytest.raises(TaskNotFoundError, match="FrozenLake-v1/train/000001"):
        gymnasium_environment(LAKE).task("FrozenLake-v1/train/1")
