"""What plays one episode: a policy with its memory of the episode. The actor sees both kinds of policy through this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from clients.policies.base import Completion, TextPlayer, TokenPolicy
from clients.rendering.contract import ParsedCompletion, RenderedPrompt, Renderer
from longturn.metrics import Metrics
from longturn.records import (
    EngineInfo,
    FinishReason,
    PolicySpan,
    RenderMode,
    SamplingParams,
    StepResult,
    TokenSpan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The policy's half of a turn; the environment's half is a StepResult. Fields as in Turn."""

    action: str
    reasoning: str = ""
    format_valid: bool = True
    is_trained: bool = True
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    policy_spans: tuple[PolicySpan, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    reasoning_span: TokenSpan | None = None
    action_span: TokenSpan | None = None
    num_synthetic_tokens: int = 0
    cached_tokens: int = 0
    earlier: tuple[Move, ...] = ()
    """Completions since the last step that led to none; turns of their own, without an action."""


class Agent(Protocol):
    """Plays one episode."""

    engine: EngineInfo | None
    """What produced the newest completion."""
    render_mode: RenderMode
    """What the prompts of its moves hold."""

    async def act(self, result: StepResult) -> Move | None:
        """Answer the newest result; None if the token budget has no room for another turn."""
        ...


class TextAgent:
    """A text policy's player."""

    engine: EngineInfo | None = None
    render_mode = RenderMode.APPEND

    def __init__(self, player: TextPlayer) -> None:
        self._player = player

    async def act(self, result: StepResult) -> Move | None:
        """Ask the player."""
        choice = await self._player.act(result)
        return Move(action=choice.action, reasoning=choice.reasoning, is_trained=choice.is_trained)


class TokenAgent:
    """A token policy, asked with the prompts of one conversation."""

    def __init__(
        self,
        policy: TokenPolicy,
        renderer: Renderer,
        sampling: SamplingParams,
        *,
        episode_key: str,
        max_episode_tokens: int,
        metrics: Metrics,
    ) -> None:
        """`max_episode_tokens` limits a prompt with its completion; 0 means no limit."""
        self._policy = policy
        self._conversation = renderer.begin()
        self._max_closing_tokens = renderer.max_closing_tokens
        self.render_mode = renderer.render_mode
        self._sampling = sampling
        self._episode_key = episode_key
        self._max_episode_tokens = max_episode_tokens
        self._metrics = metrics
        self.engine: EngineInfo | None = None

    async def act(self, result: StepResult) -> Move | None:
        """Render, sample, read."""
        prompt = self._conversation.ask(result)
        self._count(prompt)
        # A turn starts only if it can use its whole budget: no completion is ever cut by the episode's limit.
        num_needed = len(prompt.prompt_ids) + self._sampling.max_new_tokens + self._max_closing_tokens
        if self._max_episode_tokens and num_needed > self._max_episode_tokens:
            return None
        completion = await self._policy.complete(
            prompt.prompt_ids, self._sampling, episode_key=self._episode_key, turn_index=result.turn_index
        )
        self.engine = completion.engine
        return move_of(prompt.recorded_ids, completion, self._conversation.answer(completion.token_ids))

    def _count(self, prompt: RenderedPrompt) -> None:
        if prompt.was_cut:
            self._metrics.count("actors/observation/num_cut")
        if prompt.was_neutralised:
            self._metrics.count("actors/observation/num_neutralised")


def move_of(recorded_ids: tuple[int, ...], completion: Completion, parsed: ParsedCompletion) -> Move:
    """The policy's half of a turn; what closes the completion is part of it, marked as synthetic."""
    num_closing = len(parsed.closing_ids)
    return Move(
        action=parsed.action,
        reasoning=parsed.reasoning,
        format_valid=parsed.format_valid,
        prompt_ids=recorded_ids,
        completion_ids=completion.token_ids + parsed.closing_ids,
        behavior_logprobs=completion.logprobs + (0.0,) * num_closing,
        policy_spans=_extended(completion.policy_spans, num_closing),
        finish_reason=completion.finish_reason,
        reasoning_span=parsed.reasoning_span,
        action_span=parsed.action_span,
        num_synthetic_tokens=num_closing,
        cached_tokens=completion.cached_tokens,
    )


def _extended(spans: tuple[PolicySpan, ...], num_closing: int) -> tuple[PolicySpan, ...]:
    """Spans must cover the synthetic tokens too; they take the last sampled token's version and are never trained."""
    if not num_closing:
        return spans
    last = spans[-1] if spans else None
    end = last.end if last else 0
    version = last.policy_version if last else 0
    closing = PolicySpan(start=last.start if last else 0, end=end + num_closing, policy_version=version)
    return (*spans[:-1], closing)
