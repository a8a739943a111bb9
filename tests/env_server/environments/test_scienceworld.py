"""ScienceWorld's tasks in its own simulators."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError, KnobError, KnobValue, TaskNotFoundError, Transition
from env_server.environments.scienceworld import NOT_READ, ScienceWorldEnvironment, simplifications
from env_server.environments.scienceworld_tasks import NEEDS_WIRES, TASKS
from tests.env_server.loopback import Client, loopback, start_request
from tests.support.waiting import until

pytestmark = pytest.mark.java

WANDERING = (
    "look around",
    "go to kitchen",
    "look around",
    "wait",
    "go to outside",
    "look around",
    "wait1",
    "inventory",
)
CHANCY = ("mendelian-genetics-known-plant/3", "find-animal/0", "identify-life-stages-2/0", "grow-fruit/1")
"""Tasks in which plants cross, animals wander, and things are listed in an order that was once left to chance."""


@pytest.fixture
def environment() -> Iterator[ScienceWorldEnvironment]:
    made = ScienceWorldEnvironment()
    yield made
    made.close()


def play(environment: ScienceWorldEnvironment, task_id: str, **knobs: KnobValue) -> Iterator[Transition]:
    yield environment.reset(task_id, 0, knobs)
    for action in WANDERING:
        yield environment.step(action)


@pytest.mark.timeout(1800)
def test_gold_paths_reach_score_100_on_all_tasks_through_the_server() -> None:
    async def main() -> dict[str, tuple[float, bool]]:
        ended: dict[str, tuple[float, bool]] = {}
        async with loopback("scienceworld") as client:
            for task in TASKS:
                player = await client.start("scienceworld", task_id=f"{task}/0", with_oracle=True)
                result = player.first
                while result.oracle_action:
                    result = await player.step(result.oracle_action)
                ended[task] = (result.score, result.success)
        return ended

    assert asyncio.run(main()) == dict.fromkeys(TASKS, (100.0, True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("task_id", CHANCY)
def test_an_episode_is_the_same_alone_and_beside_another_in_the_same_machine(task_id: str) -> None:
    knobs: dict[str, KnobValue] = {"admissible_actions": True, "look": True, "inventory": True}
    environments = [ScienceWorldEnvironment() for _ in range(3)]
    first = list(play(environments[0], task_id, **knobs))
    beside = zip(
        play(environments[0], task_id, **knobs),
        play(environments[1], "find-animal/7", **knobs),
        play(environments[2], task_id, **knobs),
        strict=True,
    )
    for expected, (one, _, other) in zip(first, beside, strict=True):
        assert one == expected
        assert other == expected
    for environment in environments:
        environment.close()


@pytest.mark.timeout(300)
def test_an_episode_goes_on_after_its_java_machine_was_killed() -> None:
    async def episode(client: Client, *, is_killed: bool) -> list[tuple[str, float, bytes, bool]]:
        player = await client.start("scienceworld", task_id="find-animal/0")
        told = [player.first]
        for turn, action in enumerate(WANDERING):
            if is_killed and turn == 4:
                await kill_java()
            told.append(await player.step(action))
        await player.end()
        return [(result.observation, result.score, result.state_hash, result.rebuilt) for result in told]

    async def main() -> None:
        async with loopback("scienceworld") as client:
            whole = await episode(client, is_killed=False)
            mended = await episode(client, is_killed=True)
        assert [told[:3] for told in mended] == [told[:3] for told in whole]
        assert [turn for turn, told in enumerate(mended) if told[3]] == [5]

    asyncio.run(main())


async def kill_java() -> None:
    """SIGKILL to the Java machines below this process, and wait until they are gone."""
    machines = java_machines()
    assert machines
    for pid in machines:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not any(is_running(pid) for pid in machines))


def java_machines() -> list[int]:
    """Java machines below this process's children, the workers; not the one that other tests play in."""
    further = [pid for child in children(os.getpid()) for pid in below(child)]
    return [pid for pid in further if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    return [further for child in children(pid) for further in (child, *below(child))]


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(text) for task in tasks for text in (task / "children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_focusing_on_a_wrong_thing_ends_the_episode_with_score_minus_100(environment: ScienceWorldEnvironment) -> None:
    environment.reset("boil/0", 0, {})
    lost = environment.step("focus on picture")
    assert (lost.score, lost.reward, lost.is_terminal, lost.success) == (-100, -100, True, False)
    assert environment.oracle() is None
    with pytest.raises(RuntimeError):
        environment.step("look around")


def test_the_first_observation_states_the_task_and_shows_the_room(environment: ScienceWorldEnvironment) -> None:
    first = environment.reset("boil/0", 0, {})
    assert first.observation.startswith("Your task is to boil water.")
    assert "This room is called the hallway." in first.observation
    assert (first.admissible_actions, first.extras, first.score) == (None, {}, 0)


@pytest.mark.parametrize("action", ["", "0", "xyzzy", "take", "\x00", "\ud800", "look\naround", "a" * 10_000, "（go）"])
def test_an_action_that_is_not_understood_changes_nothing(action: str, environment: ScienceWorldEnvironment) -> None:
    environment.reset("boil/0", 0, {"look": True})
    answered = environment.step(action)
    assert not answered.action_valid
    assert answered.observation.startswith("No known action matches that input.")
    assert not answered.is_terminal
    assert environment.step("look around").action_valid
    if "\x00" in action:
        assert answered.observation == NOT_READ


def test_spaces_case_and_a_full_stop_do_not_matter(environment: ScienceWorldEnvironment) -> None:
    environment.reset("boil/0", 0, {})
    assert environment.step("  Look   Around. ").observation == environment.step("look around").observation


def test_the_oracle_goes_on_after_looking_and_falls_silent_off_its_way(environment: ScienceWorldEnvironment) -> None:
    environment.reset("find-living-thing/0", 0, {})
    wanted = environment.oracle()
    environment.step("look around")
    environment.step("xyzzy")
    assert environment.oracle() == wanted
    environment.step("wait1")
    assert environment.oracle() is None


def test_valid_actions_are_listed_on_request_and_understood(environment: ScienceWorldEnvironment) -> None:
    listed = environment.reset("boil/0", 0, {"admissible_actions": True}).admissible_actions
    assert listed
    assert len(listed) > 50
    assert environment.step(listed[0]).action_valid


@pytest.mark.parametrize("task", ["boil", "power-component", "test-conductivity"])
def test_the_easy_preset_is_that_of_the_package(task: str) -> None:
    from env_server.environments.scienceworld_simulator import shared_host

    ours = simplifications(task, ScienceWorldEnvironment.spec.resolve_knobs({}))
    simulator = shared_host().open(task, 0, ours)
    used = simulator.ask("getSimplificationsUsed")
    simulator.load(task, 0, "easy")
    assert simulator.ask("getSimplificationsUsed") == used
    simulator.close()


def test_the_package_agrees_on_tasks_and_splits() -> None:
    from env_server.environments.scienceworld_simulator import shared_host

    simulator = shared_host().open("boil", 0, "")
    assert simulator.ask_list("getTaskNames") == TASKS
    for task in ("boil", "inclined-plane-friction-named-surfaces", "use-thermometer"):
        simulator.load(task, 0, "")
        sizes = [simulator.interface.getVariationsTrain().size(), simulator.interface.getVariationsDev().size()]
        assert sizes == [ScienceWorldEnvironment.num_tasks(split, {"task": task}) for split in ("train", "dev")]
    simulator.close()


def test_electrical_actions_cannot_be_taken_from_tasks_that_need_them(environment: ScienceWorldEnvironment) -> None:
    for task in NEEDS_WIRES:
        with pytest.raises(KnobError, match="no_electrical_actions"):
            environment.reset(f"{task}/0", 0, {"no_electrical_actions": True})


def test_an_unknown_variation_is_refused_with_the_nearest_one(environment: ScienceWorldEnvironment) -> None:
    with pytest.raises(TaskNotFoundError, match="'boil/0'"):
        environment.reset("boil/30", 0, {})


def test_a_missing_java_runtime_is_answered_with_the_command_that_installs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(EnvironmentBrokenError, match="apt-get install openjdk-17-jre-headless"):
        ScienceWorldEnvironment.warm_up()


def test_serving_without_a_java_runtime_ends_with_one_line_that_says_what_to_install() -> None:
    variables = os.environ | {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    command = [sys.executable, "-m", "longturn", "serve", "--env", "scienceworld", "--set", "port=0"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "apt-get install openjdk-17-jre-headless" in ended.stderr.splitlines()[-1]


def test_a_heap_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGTURN_JAVA_HEAP_MB", "lots")
    with pytest.raises(EnvironmentBrokenError, match="LONGTURN_JAVA_HEAP_MB"):
        ScienceWorldEnvironment.warm_up()


def test_long_tasks_have_a_longer_turn_limit_of_their_own() -> None:
    async def main() -> list[int]:
        async with loopback("scienceworld") as client:
            requests = [
                start_request("scienceworld", task_id=task_id)
                for task_id in ("boil/0", "find-plant/0", "mendelian-genetics-known-plant/0")
            ]
            return [(await client.stub.StartEpisode(request, timeout=60.0)).max_turns for request in requests]

    spec = ScienceWorldEnvironment.spec
    assert asyncio.run(main()) == [
        spec.turn_limits["boil"], spec.max_turns, spec.turn_limits["mendelian-genetics-known-plant"]
    ]  # fmt: skip
