"""Plays conversations without a server or an engine: given results, given completions, and the record they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clients.agents import Move, TokenAgent
from clients.policies.base import Completion
from clients.policies.scripted import ScriptedPolicy
from clients.renderer import FormatRenderer
from clients.rendering.chat import ChatFormat, ChatOptions, Reasoning
from clients.rendering.content import ContentOptions
from clients.rendering.history import WindowOptions
from longturn.metrics import Metrics
from longturn.records import (
    EndCause,
    EngineInfo,
    EpisodeStatus,
    FinishReason,
    PolicySpan,
    RenderMode,
    SamplingParams,
    StepResult,
    Task,
    Trajectory,
    TrajectoryIdentity,
    Turn,
)
from tests.clients.family_tokenizers import family_tokenizer

ENGINE = EngineInfo(name="scripted", version="1")


def chat_format(family: str, *, reasoning: Reasoning = Reasoning.FORCED, **options: object) -> ChatFormat:
    """A family's format over a tokenizer made here."""
    chosen = ChatOptions(reasoning=reasoning, **{"instructions": "Play.", **options})  # type: ignore[arg-type]
    return ChatFormat(family, family_tokenizer(family), tokenizer_hash="t", options=chosen)


def renderer_of(
    turn_format: ChatFormat, *, strips: bool = False, window: WindowOptions | None = None, **content: object
) -> FormatRenderer:
    """A renderer with room for every observation."""
    options = ContentOptions(**{"max_observation_tokens": 600, **content})  # type: ignore[arg-type]
    return FormatRenderer(turn_format, options, strips=strips, window=window)


def results_of(observations: Sequence[str], **fields: object) -> list[StepResult]:
    """One result per observation."""
    return [
        StepResult(observation=text, turn_index=index, **fields)  # type: ignore[arg-type]
        for index, text in enumerate(observations)
    ]


def completion_of(ids: Sequence[int]) -> Completion:
    """A completion with logprobs that differ by position."""
    spans = (PolicySpan(start=0, end=len(ids), policy_version=3),) if ids else ()
    return Completion(
        token_ids=tuple(ids),
        logprobs=tuple(-0.25 - index / 64 for index in range(len(ids))),
        policy_spans=spans,
        finish_reason=FinishReason.STOP,
        engine=ENGINE,
    )


def play(
    renderer: FormatRenderer, results: Sequence[StepResult], completions: Sequence[Sequence[int]]
) -> tuple[list[Move], list[tuple[int, ...]]]:
    """The agent's moves, and the prompts that its policy was asked."""
    policy = ScriptedPolicy([completion_of(ids) for ids in completions])

    async def main() -> list[Move]:
        agent = TokenAgent(
            policy,
            renderer,
            SamplingParams(max_new_tokens=64),
            episode_key="e",
            max_episode_tokens=0,
            metrics=Metrics(),
        )
        moves = [await agent.act(result) for result in results]
        assert agent.render_mode is renderer.render_mode
        return [move for move in moves if move is not None]

    return asyncio.run(main()), policy.prompts


def trajectory_of(moves: Sequence[Move], mode: RenderMode) -> Trajectory:
    """The record of these moves."""
    turns = tuple(
        Turn(
            prompt_ids=move.prompt_ids,
            completion_ids=move.completion_ids,
            behavior_logprobs=move.behavior_logprobs,
            policy_spans=move.policy_spans,
            action=move.action,
            observation="",
            action_valid=True,
            num_synthetic_tokens=move.num_synthetic_tokens,
        )
        for move in moves
    )
    return Trajectory(
        identity=TrajectoryIdentity(run_id="run", group_id="t000000.0", member_index=0, attempt=0),
        task=Task(environment="scripted", task_id="one"),
        seed=0,
        initial_observation="",
        turns=turns,
        status=EpisodeStatus.TRUNCATED,
        end_cause=EndCause.TURN_LIMIT,
        episode_return=0.0,
        score=0.0,
        success=False,
        render_mode=mode,
    )
