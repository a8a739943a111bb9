"""Echo and its faulty twin."""

import math
import subprocess
import sys

import pytest

from env_server.environment import (
    Environment,
    EnvironmentBrokenError,
    KnobError,
    KnobValue,
    TaskNotFoundError,
    Transition,
)
from env_server.environments.echo import NUM_TASKS, EchoEnvironment
from env_server.environments.faulty import CRASH_EXIT_STATUS, FaultyEnvironment

TASK = "echo/train/000001"
FAULTY = "faulty/train/000001"


def play(environment: Environment, task_id: str, seed: int = 0, **knobs: KnobValue) -> list[Transition]:
    transitions = [environment.reset(task_id, seed, knobs)]
    while not transitions[-1].is_terminal:
        transitions.append(environment.step(environment.oracle() or ""))
    return transitions


@pytest.mark.parametrize(("environment", "task_id"), [(EchoEnvironment(), TASK), (FaultyEnvironment(), FAULTY)])
def test_the_oracle_wins(environment: Environment, task_id: str) -> None:
    transitions = play(environment, task_id, horizon=30)
    assert len(transitions) == 31
    assert transitions[-1].success
    assert transitions[-1].progress == transitions[-1].score == 1.0
    assert math.isclose(sum(transition.reward for transition in transitions), 1.0)


def test_another_word_earns_nothing() -> None:
    environment = EchoEnvironment()
    environment.reset(TASK, 0, {"horizon": 1})
    last = environment.step("\ud800 nothing of the kind")
    assert (last.is_terminal, last.success, last.reward) == (True, False, 0.0)


def test_seed_and_task_fix_the_episode() -> None:
    assert play(EchoEnvironment(), TASK, 3) == play(EchoEnvironment(), TASK, 3)
    assert play(EchoEnvironment(), TASK, 3) != play(EchoEnvironment(), TASK, 4)
    assert play(EchoEnvironment(), TASK, 3) != play(EchoEnvironment(), "echo/train/000002", 3)


@pytest.mark.parametrize("observation_bytes", [64, 400, 5_000_000])
def test_observations_have_the_size_asked_for(observation_bytes: int) -> None:
    first = EchoEnvironment().reset(TASK, 0, {"observation_bytes": observation_bytes})
    assert len(first.observation.encode()) == observation_bytes


def test_tasks_are_listed_and_looked_up() -> None:
    assert EchoEnvironment.num_tasks("train") == NUM_TASKS["train"]
    assert EchoEnvironment.tasks("test", NUM_TASKS["test"] - 1, 10)[0].task_id == "echo/test/009999"
    assert FaultyEnvironment.tasks("train", 1, 1)[0] == FaultyEnvironment.task(FAULTY)
    with pytest.raises(TaskNotFoundError, match="echo/train/000001"):
        EchoEnvironment.task("echo/train/1")
    with pytest.raises(TaskNotFoundError, match="echo/test/009999"):
        EchoEnvironment.task("echo/test/999999999")
    with pytest.raises(KnobError, match="train, valid, test"):
        EchoEnvironment.tasks("dev")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"horizon": 0}, r"\[1, 1e\+06\]"),
        ({"horizon": "many"}, "whole number"),
        ({"horizom": 3}, "did you mean 'horizon'"),
    ],
)
def test_bad_knobs_are_named(knobs: dict[str, KnobValue], message: str) -> None:
    with pytest.raises(KnobError, match=message):
        EchoEnvironment().reset(TASK, 0, knobs)


def test_faults_come_at_their_turn() -> None:
    environment = FaultyEnvironment()
    environment.reset(FAULTY, 0, {"fail_at_turn": 2, "nan_at_turn": 1})
    assert math.isnan(environment.step("a").reward)
    with pytest.raises(EnvironmentBrokenError):
        environment.step("a")
    with pytest.raises(EnvironmentBrokenError):
        environment.reset(FAULTY, 0, {"fail_at_turn": 0})
    environment.reset(FAULTY, 0, {"raise_at_turn": 1})
    with pytest.raises(ZeroDivisionError):
        environment.step("a")


def test_a_drifting_episode_has_another_hash_on_replay() -> None:
    first, again = (play(FaultyEnvironment(), FAULTY, is_drifting=True) for _ in range(2))
    assert [step.observation for step in first] == [step.observation for step in again]
    assert first[-1].state_hash != again[-1].state_hash


def test_a_crash_ends_the_process() -> None:
    script = (
        "from env_server.environments.faulty import FaultyEnvironment as F; e = F();"
        f"e.reset({FAULTY!r}, 0, {{'crash_at_turn': 1}}); e.step('a'); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    assert done.returncode == CRASH_EXIT_STATUS
    assert done.stdout == b""
