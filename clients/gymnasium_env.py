"""Text environments of an env server as `gymnasium.Env` and `gymnasium.vector.VectorEnv`; needs the extra `gymnasium`.

    with SyncEnvClient(EnvClientConfig(address="127.0.0.1:50051")) as envs:
        tasks = [info.task for info in envs.list_tasks("textworld", "train", limit=100)]
        env = TextEnv(envs, tasks)
        observation, info = env.reset(seed=7)
        observation, reward, terminated, truncated, info = env.step("look")

A broken or lost episode raises EpisodeError: Gymnasium has no word for it, and it must not look like a reward of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from clients.sync_environment import StartOptions, SyncEnvClient, SyncEpisode
from longturn.errors import ConfigError, EpisodeFailedError, EpisodeLostError
from longturn.records import EpisodeStatus, StepResult, Task

_PRINTABLE = "".join(map(chr, range(32, 127)))
_MAX_SEED = 2**31

Array = np.ndarray[Any, Any]


class TextSpace(gymnasium.Space[str]):
    """Any text. Samples are short printable ASCII."""

    def __init__(self, *, seed: int | np.random.Generator | None = None, max_sample_chars: int = 32) -> None:
        super().__init__(dtype=str, seed=seed)
        self.max_sample_chars = max_sample_chars

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed size."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A short text; neither mask nor probability applies."""
        if mask is not None or probability is not None:
            raise ValueError("a TextSpace takes no mask and no probability")
        length = int(self.np_random.integers(1, self.max_sample_chars + 1))
        return "".join(_PRINTABLE[index] for index in self.np_random.integers(len(_PRINTABLE), size=length))

    def contains(self, x: object) -> bool:
        """Whether it is text."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return f"TextSpace(max_sample_chars={self.max_sample_chars})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and other.max_sample_chars == self.max_sample_chars


class TextEnv(gymnasium.Env[str, str]):
    """One episode at a time. `reset(seed=...)` fixes the task, drawn from `tasks`, and the episode's own seed.

    `reset(options={"task": TASK, "seed": SEED})` chooses either instead. `info` has what a reward cannot say: score,
    success, turn_index, action_valid and so on. The client stays open at `close`: who opened it closes it.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(
        self,
        envs: SyncEnvClient,
        tasks: Sequence[Task],
        *,
        start_options: StartOptions | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode {render_mode!r} is not known; use 'ansi' or None")
        self.render_mode = render_mode
        self.observation_space = TextSpace()
        self.action_space = TextSpace()
        self._envs = envs
        self._tasks = _checked(tasks)
        self._start_options = start_options or StartOptions()
        self._episode: SyncEpisode | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """End the episode that runs and start the next one."""
        super().reset(seed=seed)
        self._end()
        task, episode_seed = _draw(self.np_random, self._tasks, options)
        self._episode = self._envs.start_with(task, seed=episode_seed, options=self._start_options)
        result = _checked_result(self._episode.initial)
        return result.observation, _info(result)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn; a text that the environment cannot use is a turn all the same (`action_valid` in `info`)."""
        if self._episode is None or self._episode.last.status.is_final:
            raise RuntimeError("no episode runs; call reset() first")
        result = _checked_result(self._episode.step(action))
        is_terminated = result.status is EpisodeStatus.TERMINATED
        is_truncated = result.status is EpisodeStatus.TRUNCATED
        return result.observation, result.reward, is_terminated, is_truncated, _info(result)

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]  # ours has one mode only
        """The newest observation."""
        return None if self.render_mode is None or self._episode is None else self._episode.last.observation

    def close(self) -> None:
        """End the episode that runs."""
        self._end()

    def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None and not episode.last.status.is_final:
            episode.end()


class TextVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], Array]):
    """Several episodes at once, their steps in flight together. Each that is over starts anew with its next step,
    whose action is ignored and whose reward is 0 (`AutoresetMode.NEXT_STEP`)."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self, envs: SyncEnvClient, tasks: Sequence[Task], *, num_envs: int, start_options: StartOptions | None = None
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, got {num_envs}")
        self.num_envs = num_envs
        self.single_observation_space = self.single_action_space = TextSpace()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._envs = envs
        self._tasks = _checked(tasks)
        self._start_options = start_options or StartOptions()
        self._episodes: list[SyncEpisode] = []
        self._generators = [np.random.default_rng() for _ in range(num_envs)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start all anew; a number as `seed` gives number + index to each."""
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
        for index, one in enumerate(seeds or ()):
            if one is not None:
                self._generators[index] = np.random.default_rng(one)
        self.close_extras()
        self._episodes = self._start(range(self.num_envs), options)
        return self._observed([episode.initial for episode in self._episodes])

    def step(self, actions: Sequence[str]) -> tuple[tuple[str, ...], Array, Array, Array, dict[str, Any]]:
        """One turn of each."""
        if len(actions) != self.num_envs or not self._episodes:
            raise RuntimeError(f"call reset() first, then step() with {self.num_envs} actions; got {len(actions)}")
        over = [index for index, episode in enumerate(self._episodes) if episode.last.status.is_final]
        going = [index for index in range(self.num_envs) if index not in set(over)]
        self._envs.step_all([self._episodes[index] for index in going], [actions[index] for index in going])
        for index, episode in zip(over, self._start(over, None), strict=True):
            self._episodes[index] = episode
        results = [episode.last for episode in self._episodes]
        observations, infos = self._observed(results)
        statuses = [result.status for result in results]
        return (
            observations,
            np.array([result.reward for result in results], dtype=np.float64),
            np.array([status is EpisodeStatus.TERMINATED for status in statuses]),
            np.array([status is EpisodeStatus.TRUNCATED for status in statuses]),
            infos,
        )

    def close_extras(self, **kwargs: Any) -> None:
        """End the episodes that run."""
        running = [episode for episode in self._episodes if not episode.last.status.is_final]
        self._episodes = []
        for episode in running:
            episode.end()

    def _start(self, indices: Sequence[int], options: dict[str, Any] | None) -> list[SyncEpisode]:
        drawn = [_draw(self._generators[index], self._tasks, options) for index in indices]
        return self._envs.start_all(drawn, options=self._start_options)

    def _observed(self, results: Sequence[StepResult]) -> tuple[tuple[str, ...], dict[str, Any]]:
        infos: dict[str, Any] = {}
        for index, result in enumerate(results):
            infos = self._add_info(infos, _info(_checked_result(result)), index)
        return tuple(result.observation for result in results), infos


def _checked(tasks: Sequence[Task]) -> tuple[Task, ...]:
    if not tasks:
        raise ConfigError("there is no task to play; list some with SyncEnvClient.list_tasks")
    return tuple(tasks)


def _draw(generator: np.random.Generator, tasks: Sequence[Task], options: dict[str, Any] | None) -> tuple[Task, int]:
    """Task and seed of the next episode. Both are drawn even where given, so that later draws stay the same."""
    task, seed = tasks[int(generator.integers(len(tasks)))], int(generator.integers(_MAX_SEED))
    chosen = options or {}
    if unknown := set(chosen) - {"task", "seed"}:
        raise ConfigError(f"reset has no option {sorted(unknown)[0]!r}; options are task and seed")
    return chosen.get("task", task), chosen.get("seed", seed)


def _checked_result(result: StepResult) -> StepResult:
    if result.failure is not None:
        raise EpisodeFailedError(result.failure.message, reason=result.failure.reason)
    if result.status is EpisodeStatus.ABORTED:
        cause = result.end_cause.name if result.end_cause else "ABORTED"
        raise EpisodeLostError(f"the server ended the episode: {cause}", reason=cause)
    return result


def _info(result: StepResult) -> dict[str, Any]:
    info: dict[str, Any] = {
        "turn_index": result.turn_index,
        "action_valid": result.action_valid,
        "success": result.success,
        "score": result.score,
        "episode_return": result.episode_return,
        "state_hash": result.state_hash,
        "extras": dict(result.extras),
    }
    optional = {
        "progress": result.progress,
        "oracle_action": result.oracle_action,
        "admissible_actions": result.admissible_actions or None,
        "end_cause": result.end_cause.name if result.end_cause else None,
    }
    return info | {name: value for name, value in optional.items() if value is not None}
