"""One episode: a real server, a scripted engine, and the trajectory they leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from clients.actor import Actor, EpisodePlan
from clients.agents import TextAgent, TokenAgent
from clients.config import EnvClientConfig, SglangConfig
from clients.environment import EnvClient
from clients.policies.base import Completion
from clients.policies.engines import Engine, EngineRegistry
from clients.policies.scripted import ScriptedPolicy
from clients.policies.sglang import SglangPolicy
from clients.policies.text import OraclePolicy, RandomPolicy, ScriptedTextPolicy
from clients.renderer import FormatRenderer
from longturn.codec import trajectory_from_bytes, trajectory_to_bytes
from longturn.errors import EpisodeError, PolicyError
from longturn.metrics import Metrics
from longturn.records import (
    EndCause,
    EngineInfo,
    EpisodeStatus,
    FinishReason,
    PolicySpan,
    SamplingParams,
    Task,
    Trajectory,
)
from tests.clients.scripted_engine import ScriptedEngine, echo_script, serving_engine
from tests.support.waiting import until

HORIZON = 5
ECHO = Task(environment="echo", task_id="echo/train/000003", knobs={"horizon": HORIZON, "observation_bytes": 100})
SAMPLING = SamplingParams(max_new_tokens=64, seed=3)
PLAN = EpisodePlan(task=ECHO, seed=8, sampling=SAMPLING, with_progress=True, tokenizer_hash="t")


@asynccontextmanager
async def _actor(address: str) -> AsyncIterator[Actor]:
    async with EnvClient(EnvClientConfig(address=address)) as envs:
        yield Actor(envs, metrics=Metrics())


@asynccontextmanager
async def _engine_policy(engine: ScriptedEngine, renderer: FormatRenderer) -> AsyncIterator[SglangPolicy]:
    registry = EngineRegistry([Engine(url=engine.url)])
    policy = SglangPolicy(SglangConfig(), engines=registry, stop_token_ids=renderer.stop_token_ids, metrics=Metrics())
    async with policy:
        yield policy


async def _play(
    address: str,
    renderer: FormatRenderer,
    engine: ScriptedEngine,
    *,
    plan: EpisodePlan = PLAN,
    max_episode_tokens: int = 0,
) -> Trajectory:
    async with _actor(address) as actor, _engine_policy(engine, renderer) as policy:
        agent = TokenAgent(
            policy,
            renderer,
            plan.sampling or SAMPLING,
            episode_key="e",
            max_episode_tokens=max_episode_tokens,
            metrics=Metrics(),
        )
        return await actor.play(plan, agent)


def test_the_ids_of_a_trajectory_are_what_the_engine_saw_and_sampled(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            trajectory = await _play(address, renderer, engine)
        history: list[int] = []
        for turn, ask, answer in zip(trajectory.turns, engine.asks, engine.answers, strict=True):
            history += turn.prompt_ids
            assert tuple(history) == ask.input_ids
            assert turn.completion_ids == answer.ids
            assert turn.num_synthetic_tokens == 0
            history += turn.completion_ids
        assert trajectory_from_bytes(trajectory_to_bytes(trajectory)).turns == trajectory.turns

    asyncio.run(main())


def test_the_first_prompt_holds_the_observation_of_the_start(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            trajectory = await _play(address, renderer, engine)
        decoded = Tokenizer.from_file(str(tokenizer_path)).decode(
            list(trajectory.turns[0].prompt_ids), skip_special_tokens=False
        )
        assert decoded == f"<obs>{trajectory.initial_observation}<think>"
        assert trajectory.initial_observation.startswith("The gorge is silent.")

    asyncio.run(main())


def test_spans_cut_reasoning_and_action_out_of_the_completion(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            trajectory = await _play(address, renderer, engine)
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
        for turn in trajectory.turns:
            assert turn.reasoning_span is not None
            assert turn.action_span is not None
            reasoning = turn.completion_ids[turn.reasoning_span.start : turn.reasoning_span.end]
            action = turn.completion_ids[turn.action_span.start : turn.action_span.end]
            assert tokenizer.decode(list(reasoning)) == turn.reasoning == f"asked for {turn.action}"
            assert tokenizer.decode(list(action)) == turn.action

    asyncio.run(main())


def test_outcome_fields_are_the_servers_own(address: str, renderer: FormatRenderer, tokenizer_path: Path) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            trajectory = await _play(address, renderer, engine)
        assert trajectory.status is EpisodeStatus.TERMINATED
        assert trajectory.success
        assert trajectory.episode_return == pytest.approx(1.0)
        assert (trajectory.score, trajectory.score_min, trajectory.score_max) == (1.0, 0.0, 1.0)
        assert [turn.progress for turn in trajectory.turns] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
        assert trajectory.initial_progress == 0.0
        assert len({trajectory.initial_state_hash, *(turn.state_hash for turn in trajectory.turns)}) == HORIZON + 1
        assert (trajectory.environment_version, trajectory.data_hash) == ("1", "echo-1")
        assert trajectory.used_privileged
        assert trajectory.engine == EngineInfo(name="scripted", version="7")

    asyncio.run(main())


def test_a_completion_cut_by_length_is_closed_by_tokens_that_nobody_sampled(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        plan = replace(PLAN, max_turns=2, sampling=SamplingParams(max_new_tokens=4, seed=1))
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            trajectory = await _play(address, renderer, engine, plan=plan)
        for turn in trajectory.turns:
            assert turn.finish_reason is FinishReason.LENGTH
            assert (turn.format_valid, turn.action) == (False, "")
            assert (len(turn.completion_ids), turn.num_synthetic_tokens) == (7, 3)
            assert turn.behavior_logprobs == (-0.5,) * 4 + (0.0,) * 3
            assert turn.policy_spans == (PolicySpan(start=0, end=7, policy_version=0),)
        assert trajectory.num_completion_tokens == 2 * 4
        first, second = trajectory.turns
        assert engine.asks[1].input_ids == first.prompt_ids + first.completion_ids + second.prompt_ids

    asyncio.run(main())


def test_a_completion_that_ends_properly_is_valid_whatever_the_engine_calls_its_end(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    """SGLang tests the length before the stop tokens."""

    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: replace(answer, finish={"type": "length", "length": len(answer.ids)})
            trajectory = await _play(address, renderer, engine)
        for turn in trajectory.turns:
            assert turn.finish_reason is FinishReason.LENGTH
            assert turn.format_valid
            assert turn.num_synthetic_tokens == 0

    asyncio.run(main())


def test_no_episode_exceeds_its_token_budget_even_if_every_turn_must_be_closed(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        plan = replace(PLAN, sampling=SamplingParams(max_new_tokens=4, seed=1))
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            whole = await _play(address, renderer, engine, plan=replace(plan, max_turns=2))
            sizes = [len(turn.prompt_ids) + len(turn.completion_ids) for turn in whole.turns]
            exact = await _play(address, renderer, engine, plan=plan, max_episode_tokens=sum(sizes))
            less = await _play(address, renderer, engine, plan=plan, max_episode_tokens=sum(sizes) - 1)
        assert len(exact.turns) == 2
        assert len(less.turns) == 1
        assert exact.end_cause is less.end_cause is EndCause.TOKEN_LIMIT

    asyncio.run(main())


@pytest.mark.parametrize(("spare", "num_turns"), [(-1, 1), (0, 2), (1, 2)])
def test_the_token_budget_ends_an_episode_before_a_turn_that_does_not_fit(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, spare: int, num_turns: int
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            whole = await _play(address, renderer, engine)
        num_second_prompt = len(engine.asks[1].input_ids)
        plan = replace(PLAN, max_turns=3)
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            limit = num_second_prompt + SAMPLING.max_new_tokens + renderer.max_closing_tokens + spare
            trajectory = await _play(address, renderer, engine, plan=plan, max_episode_tokens=limit)
        assert (trajectory.status, trajectory.end_cause) == (EpisodeStatus.TRUNCATED, EndCause.TOKEN_LIMIT)
        assert len(trajectory.turns) == num_turns
        assert trajectory.turns[0].completion_ids == whole.turns[0].completion_ids
        assert not trajectory.success

    asyncio.run(main())


def test_an_episode_that_ends_with_its_last_tokens_is_not_called_truncated(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            await _play(address, renderer, engine)
            limit = len(engine.asks[-1].input_ids) + SAMPLING.max_new_tokens + renderer.max_closing_tokens
            trajectory = await _play(address, renderer, engine, max_episode_tokens=limit)
        assert trajectory.status is EpisodeStatus.TERMINATED
        assert trajectory.end_cause is None

    asyncio.run(main())


def test_the_wall_budget_truncates_by_time(address: str, renderer: FormatRenderer, tokenizer_path: Path) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: answer if len(engine.answers) < 2 else None
            trajectory = await _play(address, renderer, engine, plan=replace(PLAN, max_episode_s=0.5))
        assert (trajectory.status, trajectory.end_cause) == (EpisodeStatus.TRUNCATED, EndCause.TIME_LIMIT)
        assert len(trajectory.turns) == 2

    asyncio.run(main())


@pytest.mark.parametrize("horizon", [1, 3])
def test_an_episode_whose_time_ends_during_a_step_is_broken(address: str, horizon: int) -> None:
    """The server finishes the step, so a trajectory without its turn would carry a return that no turn explains."""

    async def main() -> None:
        knobs = {"horizon": horizon, "observation_bytes": 100, "step_sleep_ms": 1500.0}
        task = Task(environment="echo", task_id=ECHO.task_id, knobs=knobs)
        plan = EpisodePlan(task=task, seed=8, max_episode_s=0.5)
        async with _actor(address) as actor:
            with pytest.raises(EpisodeError, match="during turn 0") as error:
                await actor.play(plan, TextAgent(ScriptedTextPolicy(["amber"]).begin(0)))
        assert error.value.reason == "CUT_DURING_STEP"

    asyncio.run(main())


def test_a_failing_engine_ends_the_episode_at_the_server_too(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        async with _actor(address) as actor:
            policy = ScriptedPolicy([])
            agent = TokenAgent(policy, renderer, SAMPLING, episode_key="e", max_episode_tokens=0, metrics=Metrics())
            started: list[str] = []
            with pytest.raises(PolicyError, match="the script has 0 completions"):
                await actor.play(PLAN, agent, on_start=lambda episode: started.append(episode.episode_id))
        assert len(started) == 1

    asyncio.run(main())


def test_a_scripted_policy_plays_without_a_model(address: str, renderer: FormatRenderer, tokenizer_path: Path) -> None:
    async def main() -> None:
        ids = tuple(Tokenizer.from_file(str(tokenizer_path)).encode("hm</think><action>amber</action>").ids)
        completion = Completion(
            token_ids=ids,
            logprobs=(-1.0,) * len(ids),
            policy_spans=(PolicySpan(start=0, end=len(ids), policy_version=3),),
            finish_reason=FinishReason.STOP,
            engine=EngineInfo(name="script", version="1"),
        )
        policy = ScriptedPolicy([completion] * HORIZON)
        async with _actor(address) as actor:
            agent = TokenAgent(policy, renderer, SAMPLING, episode_key="e", max_episode_tokens=0, metrics=Metrics())
            trajectory = await actor.play(PLAN, agent)
        assert [turn.action for turn in trajectory.turns] == ["amber"] * HORIZON
        assert trajectory.policy_versions == {3}

    asyncio.run(main())


def test_text_policies_play_without_tokens(address: str) -> None:
    async def main() -> None:
        async with _actor(address) as actor:
            plan = EpisodePlan(task=ECHO, seed=8, with_oracle=True)
            oracle = await actor.play(plan, TextAgent(OraclePolicy().begin(0)))
            scripted = await actor.play(plan, TextAgent(ScriptedTextPolicy(["amber", "birch"]).begin(0)))
            first, second = [await actor.play(plan, TextAgent(RandomPolicy().begin(4))) for _ in range(2)]
            with pytest.raises(PolicyError, match="no oracle action"):
                await actor.play(replace(plan, with_oracle=False), TextAgent(OraclePolicy().begin(0)))
        assert oracle.success
        assert oracle.used_privileged
        assert oracle.num_completion_tokens == 0
        assert [turn.action for turn in scripted.turns] == ["amber", "birch", "birch", "birch", "birch"]
        assert [turn.action for turn in first.turns] == [turn.action for turn in second.turns]

    asyncio.run(main())


def test_a_cancelled_episode_is_ended_with_its_cause(
    address: str, renderer: FormatRenderer, tokenizer_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine, _actor(address) as actor:
            engine.interfere = lambda ask, answer: None
            ids: list[tuple[str, str]] = []
            async with _engine_policy(engine, renderer) as policy:
                agent = TokenAgent(policy, renderer, SAMPLING, episode_key="e", max_episode_tokens=0, metrics=Metrics())
                playing = asyncio.create_task(
                    actor.play(
                        PLAN,
                        agent,
                        on_start=lambda episode: ids.append((episode.episode_id, episode.episode_token)),
                        cancel_cause=lambda: EndCause.STALENESS,
                    )
                )
                await until(lambda: engine.asks)
                playing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await playing
            async with EnvClient(EnvClientConfig(address=address)) as envs:
                state = (await envs.attach(*ids[0])).initial
        assert (state.status, state.end_cause) == (EpisodeStatus.ABORTED, EndCause.STALENESS)

    asyncio.run(main())
