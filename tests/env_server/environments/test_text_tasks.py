"""What holds for math, webshop and search alike, in process and through a real server."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from env_server.environment import Environment, KnobError, TaskNotFoundError, Transition
from env_server.environments.math_problems import MathEnvironment
from env_server.environments.search import SearchEnvironment
from env_server.environments.webshop import WebShopEnvironment
from longturn.v1 import environment_pb2
from tests.env_server.loopback import loopback

KINDS: dict[str, type[Environment]] = {
    "math": MathEnvironment,
    "webshop": WebShopEnvironment,
    "search": SearchEnvironment,
}
TASKS = {
    "math": "generated/steps=5/test/000003",
    "webshop": "generated/test/000003",
    "search": "generated/hops=3/test/000003",
}
# fmt: off
BAD_ACTIONS = (
    "", " ", "\n", "\x00", "search[\x00]", "\ud800", "search[\udfff]", "search［phone］", "finish［x］",
    "click［buy now］", "１８", "search[" * 1000, "x" * 2**20, "search[" + "a " * 2**19 + "]",
    "finish[" + "9" * 2**20 + "]", "search[a\nb]", "__import__('os').abort()", "\\boxed{", "{}", "[]",
    "search[]", "finish[]", "click[]",
)
# fmt: on
WANDERING = ("search[red shoes]", "click[next >]", "42", "search[river]", "", "click[back to search]", "finish[nobody]")

pytestmark = pytest.mark.usefixtures("games")


def play(name: str, actions: tuple[str, ...], seed: int = 0) -> list[Transition]:
    environment = KINDS[name]()
    transitions = [environment.reset(TASKS[name], seed, {})]
    for action in actions:
        if not transitions[-1].is_terminal:
            transitions.append(environment.step(action))
    environment.close()
    environment.close()
    return transitions


@pytest.mark.parametrize("name", KINDS)
def test_listed_ids_are_valid_ids_and_splits_share_none(name: str) -> None:
    kind = KINDS[name]
    listed = {split: [info.task_id for info in kind.tasks(split, 0, 200)] for split in kind.spec.splits}
    assert all(kind.task(task_id).task_id == task_id for ids in listed.values() for task_id in ids)
    assert all(kind.task(task_id).split == split for split, ids in listed.items() for task_id in ids)
    assert len({task_id for ids in listed.values() for task_id in ids}) == 600
    assert len(kind.tasks("train", kind.num_tasks("train") - 1, 10)) == 1
    assert kind.tasks("train", kind.num_tasks("train"), 10) == []


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "change", [("test", "tset"), ("000003", "3"), ("000003", "999999"), ("generated", ""), ("/", "")]
)
def test_the_nearest_id_of_a_wrong_one_is_valid(name: str, change: tuple[str, str]) -> None:
    wrong = TASKS[name].replace(*change)
    with pytest.raises(TaskNotFoundError) as caught:
        KINDS[name]().reset(wrong, 0, {})
    assert caught.value.nearest is not None
    assert KINDS[name].task(caught.value.nearest).task_id == caught.value.nearest


@pytest.mark.parametrize("name", KINDS)
def test_unknown_splits_and_knobs_are_named(name: str) -> None:
    with pytest.raises(KnobError, match="train, valid, test"):
        KINDS[name].tasks("dev")
    with pytest.raises(KnobError, match="has no knob 'horizon'"):
        KINDS[name]().reset(TASKS[name], 0, {"horizon": 3})


@pytest.mark.parametrize("name", KINDS)
def test_the_oracle_wins_in_time_and_rewards_sum_to_the_score(name: str) -> None:
    environment = KINDS[name]()
    num_won = 0
    for split in environment.spec.splits:
        for info in environment.tasks(split, 0, 30):
            transitions = [environment.reset(info.task_id, 0, {})]
            while not transitions[-1].is_terminal:
                action = environment.oracle()
                assert action is not None
                transitions.append(environment.step(action))
            assert len(transitions) - 1 <= environment.spec.max_turns
            assert all(transition.action_valid for transition in transitions)
            assert not any(transition.success for transition in transitions[:-1])
            assert sum(transition.reward for transition in transitions) == transitions[-1].score == info.score_max
            num_won += transitions[-1].success
    assert num_won == 90


@pytest.mark.parametrize("name", KINDS)
def test_bad_actions_are_steps_that_earn_nothing(name: str) -> None:
    environment = KINDS[name]()
    transition = environment.reset(TASKS[name], 0, {"tries": 20} if name == "math" else {})
    for action in BAD_ACTIONS:
        if transition.is_terminal:
            transition = environment.reset(TASKS[name], 0, {})
        transition = environment.step(action)
        assert not transition.action_valid, action[:30]
        assert not transition.success
        assert transition.reward == transition.score == 0.0
        transition.observation.encode()  # valid Unicode
        assert len(transition.observation) < 10_000


@pytest.mark.parametrize("name", KINDS)
def test_an_idle_player_never_wins(name: str) -> None:
    for split in KINDS[name].spec.splits:
        for info in KINDS[name].tasks(split, 0, 30):
            environment = KINDS[name]()
            transition = environment.reset(info.task_id, 0, {})
            for action in ("", "look", "wait", "click[buy now]", "0", "finish[]") * 3:
                if not transition.is_terminal:
                    transition = environment.step(action)
            assert not transition.success
            assert transition.score == 0.0


@pytest.mark.parametrize("name", KINDS)
def test_the_task_fixes_the_episode(name: str) -> None:
    first = play(name, WANDERING)
    assert play(name, WANDERING) == play(name, WANDERING, seed=7) == first
    assert len({transition.state_hash for transition in first}) >= 4  # an invalid action leaves the shop as it is


@pytest.mark.parametrize("name", KINDS)
def test_another_process_plays_the_same_episode(name: str) -> None:
    kind = KINDS[name]
    script = (
        f"from {kind.__module__} import {kind.__name__} as E; e = E(); a = {WANDERING!r}\n"
        f"t = e.reset({TASKS[name]!r}, 5, {{}}); i = 0\n"
        "while True:\n"
        "    print(t.state_hash.hex())\n"
        "    if t.is_terminal or i == len(a): break\n"
        "    t = e.step(a[i]); i += 1"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert done.stdout.split() == [transition.state_hash.hex() for transition in play(name, WANDERING)]


def test_one_server_plays_all_three_and_no_request_can_name_a_file(games: Path) -> None:
    async def main() -> None:
        async with loopback(*KINDS, num_workers=2) as client:
            listed = (
                await client.stub.ListEnvironments(environment_pb2.ListEnvironmentsRequest(), timeout=60.0)
            ).environments
            assert sorted(spec.name for spec in listed) == sorted(KINDS)
            assert not any("path" in knob.name or "file" in knob.name for spec in listed for knob in spec.knobs)
            for name, task_id in TASKS.items():
                player = await client.start(name, task_id=task_id, with_oracle=True, with_progress=True)
                result = player.first
                while result.status == environment_pb2.EPISODE_STATUS_RUNNING:
                    result = await player.step(result.oracle_action)
                assert result.success

    asyncio.run(main())
