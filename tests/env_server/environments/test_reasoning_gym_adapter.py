"""Data sets of reasoning-gym behind the protocol."""

from importlib.util import find_spec

import pytest

from clients.conformance.pytest_suite import ConformanceTests
from clients.conformance.subject import SuiteOptions
from env_server.environment import EnvironmentBrokenError
from env_server.environments.reasoning_gym_adapter import NO_ANSWER, reasoning_gym_environment
from env_server.sandbox.isolation import INSECURE_VARIABLE

pytestmark = [
    pytest.mark.skipif(
        find_spec("reasoning_gym") is None, reason="the extra server-reasoning-gym is absent; run make reasoning-gym"
    ),
    pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning"),  # of what the package imports
]


class TestChainSum(ConformanceTests):
    environment = "reasoning_gym:chain_sum"
    options = SuiteOptions(tasks_per_split=2, num_random_episodes=8, num_neighbours=16, num_resets=200, seconds=3.0)


def test_a_question_is_answered_in_as_many_tries_as_asked_for() -> None:
    environment = reasoning_gym_environment("chain_sum", config={"min_terms": 3, "max_terms": 3})()
    first = environment.reset("chain_sum/train/000004", 0, {"tries": 3})
    assert first.observation.count("+") + first.observation.count("-") >= 2
    answer = environment.oracle()
    assert answer is not None
    assert not environment.step("a lot").is_terminal
    refused = environment.step(" ")
    assert (refused.action_valid, refused.observation) == (False, NO_ANSWER)
    won = environment.step(f" {answer}\n")
    assert (won.success, won.score, won.is_terminal) == (True, 1.0, True)
    assert environment.oracle() is None
    environment.close()


def test_the_splits_of_a_data_set_share_no_position() -> None:
    environment = reasoning_gym_environment("chain_sum")
    questions = {
        split: {environment().reset(f"chain_sum/{split}/{index:06d}", 0, {}).observation for index in range(200)}
        for split in ("train", "valid", "test")
    }
    assert not questions["train"] & questions["valid"]
    assert not questions["valid"] & questions["test"]


@pytest.mark.parametrize("data_set", ["countdown", "puzzle24", "spiral_matrix", "simple_integration"])
def test_a_data_set_that_evaluates_answers_is_refused(data_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentBrokenError, match="--insecure-sandbox"):
        reasoning_gym_environment(data_set)
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    assert reasoning_gym_environment(data_set).spec.has_oracle


def test_an_unknown_data_set_is_answered_with_the_nearest() -> None:
    with pytest.raises(EnvironmentBrokenError, match="chain_sum"):
        reasoning_gym_environment("chain_sun")
