"""Plays one episode and records it.

The outcome of a trajectory is the server's own: status, return, score and success are copied from its last result and
never computed here. What breaks an episode (a lost episode, an engine that fails) is raised; the caller retries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from clients.agents import Agent, Move
from clients.catalog import EnvironmentInfo
from clients.environments import Environments
from clients.episode import RemoteEpisode
from longturn.errors import EpisodeError
from longturn.metrics import Metrics
from longturn.records import (
    EndCause,
    SamplingParams,
    StepResult,
    Task,
    Trajectory,
    TrajectoryIdentity,
    Turn,
    TurnTimings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan:
    """What to play, and within which limits."""

    task: Task
    seed: int
    task_kind: str = ""
    max_turns: int = 0
    """0: the environment's."""
    max_episode_s: float = 0.0
    """Wall budget from the first observation; 0: none."""
    with_progress: bool = False
    with_oracle: bool = False
    identity: TrajectoryIdentity | None = None
    retry_index: int = 0
    sampling: SamplingParams | None = None
    """None for text policies."""
    tokenizer_hash: str = ""


def by_shutdown() -> EndCause:
    """Why a cancelled episode ends, unless somebody says otherwise."""
    return EndCause.SHUTDOWN


class Actor:
    """Plays episodes, any number at once."""

    def __init__(self, envs: Environments, *, metrics: Metrics) -> None:
        self.envs = envs
        self.metrics = metrics

    async def is_reproducible(self, environment: str) -> bool:
        """Whether equal starts of this environment look equal."""
        return (await self.envs.environment(environment)).is_reproducible

    async def play(
        self,
        plan: EpisodePlan,
        agent: Agent,
        *,
        on_start: Callable[[RemoteEpisode], None] | None = None,
        cancel_cause: Callable[[], EndCause] = by_shutdown,
    ) -> Trajectory:
        """Play to the end and return the data; the status may be anything final, FAILED included.

        `on_start` may refuse the fresh episode by raising. Raises EpisodeError, PolicyError, CallRefusedError or
        UnreachableError if there is no trajectory; the episode is then ended at the server where that is possible. A
        cancelled call ends it with `cancel_cause()` without waiting.
        """
        started_at_s, began_s = time.time(), time.monotonic()
        info = await self.envs.environment(plan.task.environment)
        episode = await self.envs.start(
            plan.task,
            seed=plan.seed,
            max_turns=plan.max_turns,
            with_progress=plan.with_progress,
            with_oracle=plan.with_oracle,
        )
        turns: list[Turn] = []
        try:
            if on_start is not None:
                on_start(episode)
            final = await self._play_within(plan, episode, agent, turns)
        except asyncio.CancelledError:
            episode.abandon(cancel_cause())
            raise
        except BaseException:
            episode.abandon(EndCause.CLIENT_REQUEST)
            raise
        trajectory = _trajectory(plan, info, episode, turns, final, agent)
        return replace(trajectory, started_at_s=started_at_s, duration_s=time.monotonic() - began_s)

    async def _play_within(
        self, plan: EpisodePlan, episode: RemoteEpisode, agent: Agent, turns: list[Turn]
    ) -> StepResult:
        wall = asyncio.timeout(plan.max_episode_s or None)
        try:
            async with wall:
                return await self._play_turns(episode, agent, turns)
        except TimeoutError:
            if not wall.expired():
                raise
            return await self._cut(episode)

    async def _cut(self, episode: RemoteEpisode) -> StepResult:
        """End an episode whose time is up; a step in flight may still have been applied, and its turn is not data."""
        final = await episode.end(EndCause.TIME_LIMIT)
        if final.turn_index != episode.turn_index:
            raise EpisodeError(
                f"ended by TIME_LIMIT during turn {episode.turn_index}, which the server still finished",
                reason="CUT_DURING_STEP",
            )
        return final

    async def _play_turns(self, episode: RemoteEpisode, agent: Agent, turns: list[Turn]) -> StepResult:
        result = episode.initial
        while not result.status.is_final:
            asked_s = time.monotonic()
            move = await agent.act(result)
            if move is None:
                return await episode.end(EndCause.TOKEN_LIMIT)
            acted_s = time.monotonic()
            # Nothing happens between them in the environment.
            unchanged = replace(result, reward=0.0, action_valid=True)
            turns.extend(_turn(thought, unchanged, policy_s=0.0, environment_s=0.0) for thought in move.earlier)
            result = await episode.step(move.action)
            done_s = time.monotonic()
            turns.append(_turn(move, result, policy_s=acted_s - asked_s, environment_s=done_s - acted_s))
            self.metrics.count("actors/turn/num_played")
        return result


def _trajectory(
    plan: EpisodePlan,
    info: EnvironmentInfo,
    episode: RemoteEpisode,
    turns: list[Turn],
    final: StepResult,
    agent: Agent,
) -> Trajectory:
    initial = episode.initial
    return Trajectory(
        identity=plan.identity,
        retry_index=plan.retry_index,
        task=plan.task,
        task_kind=plan.task_kind,
        seed=plan.seed,
        initial_observation=initial.observation,
        initial_progress=initial.progress,
        initial_state_hash=initial.state_hash,
        turns=tuple(turns),
        status=final.status,
        end_cause=final.end_cause,
        failure=final.failure,
        episode_return=final.episode_return,
        score=final.score,
        score_min=info.score_min,
        score_max=info.score_max,
        success=final.success,
        sampling=plan.sampling,
        tokenizer_hash=plan.tokenizer_hash,
        environment_version=episode.environment_version,
        data_hash=episode.data_hash,
        engine=agent.engine,
        render_mode=agent.render_mode,
        used_privileged=plan.with_progress or plan.with_oracle,
    )


def _turn(move: Move, result: StepResult, *, policy_s: float, environment_s: float) -> Turn:
    return Turn(
        prompt_ids=move.prompt_ids,
        completion_ids=move.completion_ids,
        behavior_logprobs=move.behavior_logprobs,
        policy_spans=move.policy_spans,
        finish_reason=move.finish_reason,
        action=move.action,
        observation=result.observation,
        action_valid=result.action_valid,
        format_valid=move.format_valid,
        reward=result.reward,
        progress=result.progress,
        state_hash=result.state_hash,
        reasoning_span=move.reasoning_span,
        action_span=move.action_span,
        reasoning=move.reasoning,
        timings=TurnTimings(policy_s=policy_s, environment_s=environment_s, cached_tokens=move.cached_tokens),
        is_trained=move.is_trained,
        num_synthetic_tokens=move.num_synthetic_tokens,
    )
