"""The Gymnasium adapters over a real server, checked by Gymnasium's own checker too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed; run: make install")

import gymnasium
from gymnasium.utils.env_checker import check_env

from clients.config import EnvClientConfig
from clients.gymnasium_env import TextEnv, TextVectorEnv
from clients.sync_environment import StartOptions, SyncEnvClient
from longturn.errors import ConfigError, EpisodeFailedError
from longturn.records import Task

HORIZON = 4
ORACLE = StartOptions(with_oracle=True, with_progress=True)


def _tasks(number: int = 8, **knobs: int) -> list[Task]:
    knobs = {"horizon": HORIZON, **knobs}
    name = "faulty" if len(knobs) > 1 else "echo"
    return [Task(environment=name, task_id=f"{name}/train/{index:06d}", knobs=knobs) for index in range(number)]


@pytest.fixture(scope="module")
def envs(address: str) -> Iterator[SyncEnvClient]:
    """A blocking client."""
    with SyncEnvClient(EnvClientConfig(address=address)) as client:
        yield client


def test_an_episode_is_played_to_its_end_and_won(envs: SyncEnvClient) -> None:
    env = TextEnv(envs, _tasks(), start_options=ORACLE, render_mode="ansi")
    observation, info = env.reset(seed=1)
    assert env.render() == observation
    rewards: list[float] = []
    is_terminated = False
    while not is_terminated:
        observation, reward, is_terminated, is_truncated, info = env.step(info["oracle_action"])
        rewards.append(reward)
        assert not is_truncated
    assert (sum(rewards), len(rewards), info["success"], info["progress"]) == (1.0, HORIZON, True, 1.0)
    with pytest.raises(RuntimeError, match="reset"):
        env.step("amber")
    env.close()


def test_the_seed_fixes_the_episode_and_options_choose_it(envs: SyncEnvClient) -> None:
    first, second = TextEnv(envs, _tasks(100)), TextEnv(envs, _tasks(100))
    assert first.reset(seed=5)[1]["state_hash"] == second.reset(seed=5)[1]["state_hash"]
    assert first.reset()[1]["state_hash"] == second.reset()[1]["state_hash"]
    assert first.reset()[1]["state_hash"] != first.reset()[1]["state_hash"]
    options = {"task": _tasks(100)[42], "seed": 3}
    chosen = [first.reset(options=options)[1]["state_hash"] for _ in range(2)]
    assert chosen[0] == chosen[1]
    with pytest.raises(ConfigError, match="no option 'tsak'"):
        first.reset(options={"tsak": 1})


def test_a_turn_limit_truncates(envs: SyncEnvClient) -> None:
    env = TextEnv(envs, _tasks(), start_options=StartOptions(max_turns=2))
    env.reset(seed=1)
    assert env.step("wrong")[2:4] == (False, False)
    *_, is_terminated, is_truncated, info = env.step("wrong")
    assert (is_terminated, is_truncated, info["end_cause"]) == (False, True, "TURN_LIMIT")


def test_a_broken_environment_is_an_error_and_never_a_reward(envs: SyncEnvClient) -> None:
    env = TextEnv(envs, _tasks(fail_at_turn=2))
    env.reset(seed=1)
    env.step("amber")
    with pytest.raises(EpisodeFailedError, match="broken on request"):
        env.step("amber")


def test_gymnasiums_own_checker_is_content(envs: SyncEnvClient) -> None:
    with warnings.catch_warnings():
        # It recommends spaces with bounds, which text has not.
        warnings.filterwarnings("ignore", category=UserWarning, module="gymnasium")
        check_env(TextEnv(envs, _tasks()), skip_render_check=True)


def test_wrappers_of_gymnasium_work(envs: SyncEnvClient) -> None:
    env = gymnasium.wrappers.TimeLimit(TextEnv(envs, _tasks()), max_episode_steps=2)
    env.reset(seed=1)
    assert [env.step("amber")[3] for _ in range(2)] == [False, True]
    env.close()


def test_a_vector_steps_together_and_starts_over(envs: SyncEnvClient) -> None:
    vector = TextVectorEnv(envs, _tasks(50), num_envs=5, start_options=ORACLE)
    observations, infos = vector.reset(seed=9)
    assert observations in vector.observation_space
    firsts = list(infos["state_hash"])
    assert len(set(firsts)) == 5
    for turn in range(HORIZON):
        _, rewards, terminations, truncations, infos = vector.step(list(infos["oracle_action"]))
        assert (rewards.tolist(), truncations.any()) == ([1 / HORIZON] * 5, False)
        assert terminations.tolist() == [turn == HORIZON - 1] * 5
    assert infos["success"].all()
    _, rewards, terminations, _, infos = vector.step(["ignored"] * 5)
    assert (rewards.tolist(), terminations.any()) == ([0.0] * 5, False)
    assert infos["turn_index"].tolist() == [0] * 5
    assert set(infos["state_hash"]).isdisjoint(firsts)
    again, infos = vector.reset(seed=9)
    assert (again, list(infos["state_hash"])) == (observations, firsts)
    vector.step(vector.action_space.sample())
    with pytest.raises(RuntimeError, match="5 actions"):
        vector.step(["one"])
    vector.close()
