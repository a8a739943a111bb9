"""Bundled environments keep what every environment promises."""

from importlib.util import find_spec

import pytest

from clients.conformance.pytest_suite import ConformanceTests
from clients.conformance.subject import SuiteOptions
from env_server.sandbox.isolation import isolation


@pytest.mark.usefixtures("games")
class TestTextWorld(ConformanceTests):
    environment = "textworld"
    options = SuiteOptions(
        filters={"family": "coin_collector", "level": "5"},
        tasks_per_split=1,
        num_random_episodes=6,
        num_neighbours=24,
        num_resets=60,
        seconds=5.0,
    )


@pytest.mark.slow
@pytest.mark.skipif(find_spec("fast_downward") is None, reason="the extra server-alfworld is absent; run make alfworld")
@pytest.mark.usefixtures("games")
class TestAlfworld(ConformanceTests):
    environment = "alfworld"
    options = SuiteOptions(
        filters={"source": "generated"},
        tasks_per_split=2,
        num_random_episodes=12,
        num_neighbours=64,
        num_resets=200,
        seconds=10.0,
    )


class TestCode(ConformanceTests):
    environment = "code"
    options = SuiteOptions(
        knobs={"cpu_s": 1},
        tasks_per_split=1,
        num_random_episodes=4,
        num_neighbours=16,
        num_resets=60,
        seconds=5.0,
    )

    @classmethod
    def setup_class(cls) -> None:
        if not isolation().is_whole:
            pytest.skip(f"the code environment did not run: {isolation().explain()}")
        super().setup_class()


@pytest.mark.java
@pytest.mark.timeout(600)
class TestScienceWorld(ConformanceTests):
    environment = "scienceworld"
    options = SuiteOptions(
        filters={"task": "find-living-thing"},
        tasks_per_split=1,
        num_random_episodes=4,
        num_neighbours=16,
        num_resets=200,
        seconds=30.0,
    )


EXPRESS_FAULTS = {
    "hashes_hold_across_processes": "gold paths of coin and twc differ between Java machines",
    "replay_reproduces_episodes": "gold paths of coin and twc differ between Java machines",
    "resets_do_not_grow": "each new game leaves a file open until Java collects it",
}
"""Checks that may fail, and why."""


@pytest.mark.java
@pytest.mark.timeout(600)
class TestTextWorldExpress(ConformanceTests):
    environment = "textworld_express"
    options = SuiteOptions(tasks_per_split=8, num_random_episodes=24, num_neighbours=64, num_resets=500, seconds=15.0)

    @pytest.fixture(autouse=True)
    def _faults_of_the_package(self, request: pytest.FixtureRequest) -> None:
        """What the package does and this adapter does not mend yet."""
        reason = next((reason for check, reason in EXPRESS_FAULTS.items() if check in request.node.name), "")
        if reason:
            request.applymarker(pytest.mark.xfail(strict=False, reason=reason))
