"""An episode that an outside agent plays: it asks for completions, acts, and is told what came of it.

Invariant: every completion that the agent was given is a turn of the episode, in the order in which they were sampled;
the last one before a step is the turn that the step belongs to.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from clients.actor import Actor, EpisodePlan, by_shutdown
from clients.agents import Agent, Move, move_of
from clients.assignment import PlayRules
from clients.episode import RemoteEpisode
from clients.policies.base import Completion, TokenPolicy
from clients.proxy.completions import ChatReply, ChatRequest
from clients.proxy.transcript import Transcript
from clients.rendering.chat import ChatFormat
from longturn.errors import LongturnError, PolicyError
from longturn.metrics import Metrics
from longturn.records import EndCause, EngineInfo, RenderMode, SamplingParams, StepResult, Trajectory


class NotNowError(LongturnError):
    """The episode is not where the agent thinks it is; the reason says where."""

    reason = "NOT_NOW"


class OverError(LongturnError):
    """The episode is over for the agent; the reason says how."""

    reason = "EPISODE_OVER"


_OUT_OF_TOKENS = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the agent sees of the environment."""

    observation: str
    reward: float
    episode_return: float
    score: float
    success: bool
    status: str
    action_valid: bool
    turn_index: int
    admissible_actions: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: StepResult) -> Seen:
        """A result, without what is privileged."""
        return cls(
            observation=result.observation,
            reward=result.reward,
            episode_return=result.episode_return,
            score=result.score,
            success=result.success,
            status=result.status.name,
            action_valid=result.action_valid,
            turn_index=result.turn_index,
            admissible_actions=result.admissible_actions,
        )

    @classmethod
    def at_end(cls, trajectory: Trajectory, turn_index: int) -> Seen:
        """The end of an episode."""
        last = trajectory.turns[-1] if trajectory.turns else None
        return cls(
            observation=last.observation if last else trajectory.initial_observation,
            reward=last.reward if last else 0.0,
            episode_return=trajectory.episode_return,
            score=trajectory.score,
            success=trajectory.success,
            status=trajectory.status.name,
            action_valid=last.action_valid if last else True,
            turn_index=turn_index,
        )


class OutsideAgent:
    """The pool's side of one episode; the methods below `act` are the agent's."""

    render_mode = RenderMode.WINDOW
    engine: EngineInfo | None = None

    def __init__(
        self,
        policy: TokenPolicy,
        chat: ChatFormat,
        sampling: SamplingParams,
        rules: PlayRules,
        *,
        episode_key: str,
        idle_s: float,
        metrics: Metrics,
    ) -> None:
        self._policy = policy
        self._chat = chat
        self._sampling = sampling
        self._max_tokens = rules.max_episode_tokens
        self._episode_key = episode_key
        self._idle_s = idle_s
        self._metrics = metrics
        self.key = secrets.token_urlsafe(24)
        self.plan: EpisodePlan | None = None
        self.hand_over: Callable[[OutsideAgent], None] = lambda agent: None
        """Called once, when there is something to see."""
        self._transcript = Transcript(chat)
        self._moves: list[Move] = []
        self._num_asked = 0
        self._num_running = 0
        self._num_steps = 0
        self._actions: asyncio.Queue[object] = asyncio.Queue()
        self._seen: asyncio.Future[Seen] | None = None
        self.newest: Seen | None = None
        self._over: OverError | None = None
        self._heard_s = time.monotonic()

    # -- the actor's side

    async def act(self, result: StepResult) -> Move | None:
        """Show the result and wait for the agent's next action; PolicyError if it is away for too long."""
        is_first = self.newest is None
        self._show(Seen.of(result))
        if is_first:
            self.hand_over(self)
        action = await self._next_action()
        if isinstance(action, LongturnError):
            raise action
        if action is _OUT_OF_TOKENS:
            return None
        *earlier, last = self._moves
        self._moves = []
        return replace(last, action=str(action), earlier=tuple(earlier))

    async def _next_action(self) -> object:
        self._heard_s = time.monotonic()
        while True:
            left_s = self._heard_s + self._idle_s - time.monotonic()
            if left_s <= 0 and not self._num_running:
                raise PolicyError(
                    f"episode {self._episode_key}: its agent was silent for {self._idle_s:g} s (proxy.idle_s)",
                    reason="AGENT_AWAY",
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left_s, 0.05)):
                    return await self._actions.get()

    def _show(self, seen: Seen) -> None:
        self.newest = seen
        if self._seen is not None and not self._seen.done():
            self._seen.set_result(seen)

    def finish(self, trajectory: Trajectory) -> None:
        """Tell the agent how it ended."""
        self._over = OverError(f"the episode is over: {trajectory.status.name}")
        self._show(Seen.at_end(trajectory, self._num_steps))

    def close(self, error: BaseException) -> None:
        """Tell the agent that there is no more to come."""
        reason = error.reason if isinstance(error, LongturnError) else "STOPPED"
        self._over = OverError(f"the episode broke off: {error}", reason=reason)
        if self._seen is not None and not self._seen.done():
            self._seen.set_exception(self._over)

    # -- the agent's side

    @property
    def is_live(self) -> bool:
        """Whether the episode still goes on."""
        return self._over is None

    def check_live(self) -> None:
        """Raise OverError if the episode is over."""
        if self._over is not None:
            raise self._over

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Sample an answer and keep it as a turn.

        Raises OverError if the episode is over, or ends here for want of tokens; PolicyError if no engine answers.
        """
        self.check_live()
        prompt_ids = self._transcript.prompt(request.messages)
        limit = self._sampling.max_new_tokens
        sampling = replace(self._sampling, max_new_tokens=min(request.max_tokens or limit, limit))
        num_needed = len(prompt_ids) + sampling.max_new_tokens + self._chat.max_closing_tokens
        if self._max_tokens and num_needed > self._max_tokens:
            self._over = OverError(
                f"this prompt needs {num_needed} tokens, the run allows {self._max_tokens} "
                "(learner.play.max_episode_tokens); the episode is over",
                reason="context_length_exceeded",
            )
            self._actions.put_nowait(_OUT_OF_TOKENS)
            raise self._over
        completion = await self._sample(prompt_ids, sampling, request)
        if request.overridden:
            self._metrics.count("actors/proxy/num_overridden")
        return self._record(request, prompt_ids, completion)

    async def _sample(self, prompt_ids: tuple[int, ...], sampling: SamplingParams, request: ChatRequest) -> Completion:
        index, self._num_asked = self._num_asked, self._num_asked + 1
        self._num_running += 1
        try:
            completion = await self._policy.complete(
                prompt_ids,
                sampling,
                episode_key=self._episode_key,
                turn_index=index,
                stop_texts=request.stop_texts,
            )
        except PolicyError as error:
            self._actions.put_nowait(error)
            raise
        finally:
            self._num_running -= 1
            self._heard_s = time.monotonic()
        self.check_live()
        self.engine = completion.engine
        return completion

    def _record(self, request: ChatRequest, prompt_ids: tuple[int, ...], completion: Completion) -> ChatReply:
        parsed = self._chat.parse(completion.token_ids)
        # What the agent makes of its completion is its own affair.
        move = replace(move_of(prompt_ids, completion, parsed), action="", format_valid=True)
        self._moves.append(move)
        text = self._chat.begun_text + self._chat.read(completion.token_ids).whole
        self._transcript.remember(request.messages, text, prompt_ids + move.completion_ids)
        self._metrics.count("actors/proxy/num_completions")
        spelled = [self._chat.read([index]).whole for index in completion.token_ids]
        return ChatReply(
            completion_id=f"chatcmpl-{self._num_asked}",
            text=text,
            finish_reason=completion.finish_reason,
            num_prompt_tokens=len(prompt_ids),
            num_cached_tokens=completion.cached_tokens,
            logprobs=list(zip(spelled, completion.logprobs, strict=True)),
        )

    async def step(self, action: str) -> Seen:
        """Send an action to the environment and see what comes of it; NotNowError names what is missing."""
        self.check_live()
        if self._num_running:
            raise NotNowError("a completion is still being sampled; act on it first", reason="COMPLETION_RUNNING")
        if self._seen is not None and not self._seen.done():
            raise NotNowError("the step before is still being taken", reason="STEP_RUNNING")
        if not self._moves:
            raise NotNowError(
                "the policy was not asked since the last step; every action needs a completion before it",
                reason="NO_COMPLETION",
            )
        self._seen = asyncio.get_running_loop().create_future()
        self._num_steps += 1
        self._actions.put_nowait(action)
        return await asyncio.shield(self._seen)

    def abandon(self, why: str) -> None:
        """Give the episode up; it is played again, by whoever asks for the next one."""
        self.check_live()
        error = PolicyError(f"episode {self._episode_key}: its agent gave it up: {why}", reason="AGENT_ABANDONED")
        self._over = OverError("the episode was given up", reason="AGENT_ABANDONED")
        self._actions.put_nowait(error)


Claim = asyncio.Future[OutsideAgent]


class Door:
    """Who waits for an episode, and which episodes are being played."""

    def __init__(self) -> None:
        self._waiting: deque[Claim] = deque()
        self._came = asyncio.Event()
        self._live: dict[str, OutsideAgent] = {}
        self._unclaimed: deque[OutsideAgent] = deque()

    async def claim(self, wait_s: float) -> OutsideAgent | None:
        """The next episode, once it has begun; None after `wait_s` without one."""
        while self._unclaimed:
            agent = self._unclaimed.popleft()
            if agent.is_live:
                return agent
        claim: Claim = asyncio.get_running_loop().create_future()
        self._waiting.append(claim)
        self._came.set()
        try:
            async with asyncio.timeout(wait_s):
                return await claim
        except TimeoutError:
            return None

    def find(self, key: str) -> OutsideAgent | None:
        """An episode by its key, also a while after its end."""
        return self._live.get(key)

    async def next_claim(self) -> Claim:
        """Wait until somebody wants an episode."""
        while True:
            while self._waiting:
                claim = self._waiting.popleft()
                if not claim.done():
                    return claim
            self._came.clear()
            await self._came.wait()

    def give_back(self, claim: Claim) -> None:
        """The episode for this claim did not begin."""
        if not claim.done():
            self._waiting.appendleft(claim)
            self._came.set()

    def hand_over(self, agent: OutsideAgent, claim: Claim) -> None:
        """Give an agent that has begun to whoever claimed it, or to the next one if that one left."""
        self._live[agent.key] = agent
        if claim.done():
            self._unclaimed.append(agent)
        else:
            claim.set_result(agent)

    def forget(self, agent: OutsideAgent) -> None:
        """Drop an episode that ended long ago."""
        self._live.pop(agent.key, None)


class OutsideActor(Actor):
    """Plays an episode once an outside agent asks for one."""

    def __init__(self, actor: Actor, door: Door, *, keep_s: float) -> None:
        """`keep_s`: how long an ended episode still answers its agent with its end."""
        super().__init__(actor.envs, metrics=actor.metrics)
        self._door = door
        self._keep_s = keep_s

    async def play(
        self,
        plan: EpisodePlan,
        agent: Agent,
        *,
        on_start: Callable[[RemoteEpisode], None] | None = None,
        cancel_cause: Callable[[], EndCause] = by_shutdown,
    ) -> Trajectory:
        """As `Actor.play`, for an OutsideAgent."""
        if not isinstance(agent, OutsideAgent):
            raise TypeError(f"{type(agent).__name__} is not played from outside")
        claim = await self._door.next_claim()
        agent.plan = plan
        agent.hand_over = lambda begun: self._door.hand_over(begun, claim)
        try:
            trajectory = await super().play(plan, agent, on_start=on_start, cancel_cause=cancel_cause)
        except BaseException as error:
            agent.close(error)
            raise
        else:
            agent.finish(trajectory)
            return trajectory
        finally:
            self._door.give_back(claim)
            asyncio.get_running_loop().call_later(self._keep_s, self._door.forget, agent)
