"""The actor pool between a real env server, a scripted engine and a scripted learner, all on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from tokenizers import Tokenizer

from clients.act import group_players
from clients.config import EnvClientConfig, SglangConfig
from clients.environment import EnvClient
from clients.learner_link import PoolOptions
from clients.policies.engines import EngineRegistry
from clients.policies.sglang import SglangPolicy
from clients.pool import ActorPool
from clients.renderer import FormatRenderer
from clients.spool import Spool
from longturn.disk import DiskError
from longturn.dispatch import Body, DispatchDealer
from longturn.errors import ConfigError, UnreachableError
from longturn.metrics import Metrics
from longturn.records import Task
from longturn.status import StatusBoard
from longturn.v1 import dispatch_pb2
from tests.clients.daemons import ServerProcess, server_process
from tests.clients.scripted_engine import Answer, Ask, echo_script, serving_engine
from tests.clients.scripted_learner import ScriptedLearner, accept, group, rules
from tests.support.waiting import until


def _echo(index: int = 3, **knobs: int | float) -> Task:
    settings = {"horizon": 4, "observation_bytes": 100, **knobs}
    return Task(environment="echo", task_id=f"echo/train/{index:06d}", knobs=settings)


def _faulty(**knobs: int | bool | float) -> Task:
    settings = {"horizon": 4, "observation_bytes": 100, **knobs}
    return Task(environment="faulty", task_id="faulty/train/000001", knobs=settings)


@dataclass
class Parts:
    """A pool and what it stands on."""

    pool: ActorPool
    metrics: Metrics
    board: StatusBoard
    spool: Spool
    envs: EnvClient


@contextlib.asynccontextmanager
async def parts_of(
    address: str,
    renderer: FormatRenderer,
    learner_address: str,
    folder: Path,
    *,
    num_actors: int = 64,
    budget_s: float = 30.0,
    max_unacked: int = 256,
    resend_s: float = 0.3,
    **engine: float,
) -> AsyncIterator[Parts]:
    metrics = Metrics()
    board = StatusBoard("actors", metrics)
    engines = EngineRegistry()
    options = PoolOptions(
        pool_id="pool",
        incarnation="1",
        num_actors=num_actors,
        learner_budget_s=budget_s,
        max_unacked=max_unacked,
        resend_s=resend_s,
        tokenizer_hash=renderer.tokenizer_hash,
    )
    config = SglangConfig.model_validate({"turn_budget_s": 20.0, **engine})
    spool = Spool(folder / "spool")
    async with (
        EnvClient(EnvClientConfig(address=address)) as envs,
        SglangPolicy(config, engines=engines, stop_token_ids=renderer.stop_token_ids, metrics=metrics) as policy,
        DispatchDealer(learner_address, pool_id="pool", incarnation="1") as link,
    ):
        pool = ActorPool(
            options,
            link=link,
            engines=engines,
            make_players=lambda made: group_players(made, envs, policy, renderer, engines, metrics, num_actors),
            spool=spool,
            metrics=metrics,
            board=board,
        )
        try:
            yield Parts(pool, metrics, board, spool, envs)
        finally:
            spool.close()


async def _run(parts: Parts, *, limit_s: float = 60.0) -> str:
    async with asyncio.timeout(limit_s):
        return await parts.pool.run()


def test_groups_are_played_and_handed_in_until_the_run_ends(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group(f"g{index}", _echo(index)) for index in range(6)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    assert await _run(parts) == "COMPLETED"
                    assert len(parts.spool) == 0
        for index in range(6):
            members = learner.members(f"g{index}")
            assert sorted(members) == [0, 1, 2, 3]
            assert len({item.initial_state_hash for item in members.values()}) == 1
            assert {item.sampling.seed for item in members.values() if item.sampling} == {100, 101, 102, 103}
            assert all(item.success and item.task_kind == "echo" for item in members.values())
        assert isinstance(learner.received[0], dispatch_pb2.Hello)
        seeds = Counter(ask.sampling["sampling_seed"] for ask in engine.asks)
        assert len(seeds) == 4 * 4  # members and turns differ, equal members of other groups do not matter here

    asyncio.run(main())


def test_a_pool_keeps_nothing_of_what_was_acknowledged(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group(f"g{index}", _echo(index, horizon=1), size=2) for index in range(40)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path, num_actors=8) as parts:
                    await _run(parts)
                    assert (len(parts.spool), parts.pool.num_remembered) == (0, 0)
        assert len(learner.trajectories) == 80
        assert not list((tmp_path / "spool").glob("*.submission"))

    asyncio.run(main())


def test_returns_of_a_thousand_episodes_equal_the_servers(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        right = echo_script(tokenizer_path)
        wrong = list(right_closing(tokenizer_path))

        def script(ask: Ask) -> list[int]:
            is_right = random.Random(ask.rid).random() < 0.6
            return list(right(ask)) if is_right else wrong

        async with serving_engine(script) as engine:
            groups = [group(f"g{index}", _echo(index, horizon=2), size=8) for index in range(125)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path, num_actors=128) as parts:
                    await _run(parts, limit_s=110)
        assert len(learner.trajectories) == 1000
        for trajectory in learner.trajectories:
            assert trajectory.episode_return == pytest.approx(sum(turn.reward for turn in trajectory.turns), abs=1e-12)
            num_right = sum(turn.observation.startswith("The gorge answers") for turn in trajectory.turns)
            assert trajectory.episode_return == pytest.approx(num_right / 2)
            assert trajectory.score == pytest.approx(num_right / 2)
            assert trajectory.success == (num_right == 2)
        assert len({trajectory.episode_return for trajectory in learner.trajectories}) == 3

    asyncio.run(main())


def right_closing(tokenizer_path: Path) -> list[int]:
    """A completion whose action is never the word asked for."""
    return Tokenizer.from_file(str(tokenizer_path)).encode("no</think><action>hush</action>").ids


def test_an_engine_that_loses_replies_costs_no_group(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        draw = random.Random(1)
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: None if draw.random() < 0.02 else answer
            groups = [group(f"g{index}", _echo(index), size=8) for index in range(8)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path, request_timeout_s=0.5) as parts:
                    await _run(parts)
        assert len(learner.trajectories) == 64
        assert not learner.failed
        assert all(len(item.turns) == 4 and item.success for item in learner.trajectories)
        assert parts.metrics.snapshot()["actors/engine/lost_requests"] > 0

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["fail_at_turn", "crash_at_turn"])
def test_members_that_break_every_time_fail_their_group_with_a_reason_and_never_a_zero(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path, fault: str
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("broken", _faulty(**{fault: 2}), size=2), group("whole", _echo())]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert [(item.group_id, item.reason) for item in learner.failed] == [("broken", "MEMBER_RETRIES")]
        assert not learner.members("broken")
        assert len(learner.members("whole")) == 4

    asyncio.run(main())


def test_an_engine_that_refuses_fails_the_group_at_once(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: web.Response(status=400, text="the prompt is too long")
            groups = [group("refused", _echo(), size=1)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
            [failed] = learner.failed
            assert failed.reason == "ENGINE_REFUSED"
            assert "the prompt is too long" in failed.message
            assert len(engine.asks) == 1

    asyncio.run(main())


def test_a_member_that_breaks_once_is_played_again_in_a_fresh_episode(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:

            def break_first(ask: Ask, answer: Answer) -> Answer:
                is_first_life = ask.episode_key.endswith(".1.0")
                return Answer(answer.ids, logprob=float("nan")) if is_first_life else answer

            engine.interfere = break_first
            groups = [group("g", _echo())]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        members = learner.members("g")
        assert {index: item.retry_index for index, item in members.items()} == {0: 0, 1: 1, 2: 0, 3: 0}
        assert parts.metrics.snapshot()["actors/episode/broken_bad_logprobs"] == 1

    asyncio.run(main())


def test_a_wall_budget_never_makes_a_member(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("slow", _echo(step_sleep_ms=300.0), size=1)]
            play = rules(max_episode_s=0.4, max_member_retries=1)
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], play=play) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        [failed] = learner.failed
        assert failed.reason == "MEMBER_RETRIES"
        assert "TIME_LIMIT" in failed.message
        assert not learner.trajectories

    asyncio.run(main())


def test_a_group_ends_at_its_wall_budget(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: None
            groups = [group("stuck", _echo())]
            play = rules(max_group_s=0.5)
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], play=play) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert [item.reason for item in learner.failed] == ["GROUP_WALL_TIME"]

    asyncio.run(main())


def test_a_group_whose_episodes_begin_differently_is_refused(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("drifting", _faulty(is_drifting=True))]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        [failed] = learner.failed
        assert failed.reason == "START_MISMATCH"
        assert "began in different states" in failed.message

    asyncio.run(main())


def test_a_task_that_does_not_exist_fails_its_group_at_once(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [
                group("none", Task(environment="echo", task_id="echo/train/xyz")),
                group("nor", Task(environment="nowhere", task_id="x")),
            ]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert {item.group_id: item.reason for item in learner.failed} == {
            "none": "TASK_NOT_FOUND",
            "nor": "ENVIRONMENT_NOT_FOUND",
        }

    asyncio.run(main())


def test_trajectories_without_an_ack_are_sent_again_until_it_comes(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        seen: Counter[int] = Counter()

        def forget_once(message: dispatch_pb2.SubmitTrajectory) -> dispatch_pb2.AckVerdict.ValueType | None:
            seen[message.identity.member_index] += 1
            return accept(message) if seen[message.identity.member_index] > 1 else None

        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("g", _echo())]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], ack_for=forget_once) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert len(learner.members("g")) == 4
        assert min(seen.values()) >= 2
        held = [item for body in learner.received if isinstance(body, dispatch_pb2.Heartbeat) for item in body.held]
        assert {(item.group_id, item.attempt) for item in held} == {("g", 0)}

    asyncio.run(main())


def test_finished_trajectories_survive_the_pool_and_are_not_played_again(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("g", _echo())]
            finished = threading.Event()

            def keep_waiting(message: dispatch_pb2.SubmitTrajectory) -> None:
                identities.add(message.identity.member_index)
                if len(identities) == 4:
                    finished.set()

            identities: set[int] = set()
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], ack_for=keep_waiting) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    running = asyncio.create_task(_run(parts))
                    await asyncio.to_thread(finished.wait, 30)
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
            assert isinstance(learner.received[-1], dispatch_pb2.Goodbye)
            num_asks = len(engine.asks)
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], run_epoch=2) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    assert len(parts.spool) == 4
                    await _run(parts)
            assert len(learner.members("g")) == 4
            assert len(engine.asks) == num_asks

    asyncio.run(main())


def test_a_superseded_trajectory_stops_its_group_and_its_episodes(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: (
                answer
                if ".0.0:" in f"{ask.rid}" and "old.0.0" in ask.rid
                else (None if ask.rid.startswith("old") else answer)
            )
            groups = [group("old", _echo()), group("new", _echo())]
            with ScriptedLearner(
                tmp_path,
                groups=groups,
                engine_urls=[engine.url],
                ack_for=lambda message: (
                    dispatch_pb2.ACK_VERDICT_SUPERSEDED if message.identity.group_id == "old" else accept(message)
                ),
            ) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert len(learner.members("new")) == 4
        assert not learner.failed
        assert parts.metrics.snapshot()["actors/group/num_stopped"] == 1

    asyncio.run(main())


def test_a_newer_attempt_replaces_the_older_one(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: None if ask.rid.startswith("g.0.") else answer
            again = group("g", _echo(), attempt=1, size=4)
            with ScriptedLearner(
                tmp_path, groups=[group("g", _echo())], engine_urls=[engine.url], ends_by_itself=False
            ) as learner:
                learner.on_message = lambda body: (
                    [again, again] if isinstance(body, dispatch_pb2.Heartbeat) and body.held else []
                )
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    running = asyncio.create_task(_run(parts))
                    await until(lambda: parts.metrics.snapshot().get("actors/trajectory/num_accepted", 0) >= 4)
                    learner.push(dispatch_pb2.EndOfRun(reason="STOPPED"))
                    assert await running == "STOPPED"
        submitted = [body for body in learner.received if isinstance(body, dispatch_pb2.SubmitTrajectory)]
        assert {body.identity.attempt for body in submitted} == {1}

    asyncio.run(main())


def test_a_retry_outside_the_version_window_fails_the_group(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            with ScriptedLearner(tmp_path, groups=[group("g", _echo(), size=1)], engine_urls=[engine.url]) as learner:

                def advance(ask: Ask, answer: Answer) -> Answer:
                    learner.policy_version = 2
                    learner.push(learner.announcement())
                    return Answer(answer.ids, logprob=float("nan"))

                engine.interfere = advance
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert [item.reason for item in learner.failed] == ["VERSION_WINDOW"]

    asyncio.run(main())


def test_a_member_waits_for_the_lowest_version_of_its_window(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.weight_version = "3"
            waiting = group("g", _echo(), min_policy_version=3)
            with ScriptedLearner(tmp_path, groups=[waiting], engine_urls=[engine.url]) as learner:

                def announce(body: Body) -> list[Body]:
                    if not isinstance(body, dispatch_pb2.Heartbeat) or not body.held or learner.policy_version == 3:
                        return []
                    assert not engine.asks
                    learner.policy_version = 3
                    return [learner.announcement()]

                learner.on_message = announce
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert {item.policy_versions for item in learner.trajectories} == {frozenset({3})}

    asyncio.run(main())


def test_too_many_trajectories_without_an_ack_stop_the_playing_with_a_reason(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        is_open = threading.Event()

        def later(message: dispatch_pb2.SubmitTrajectory) -> dispatch_pb2.AckVerdict.ValueType | None:
            return accept(message) if is_open.is_set() else None

        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group(f"g{index}", _echo(index)) for index in range(5)]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], ack_for=later) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path, num_actors=2, max_unacked=3) as parts:
                    running = asyncio.create_task(_run(parts))
                    await until(lambda: any("without an ack" in wait.reason for wait in parts.board.snapshot().waits))
                    assert len(parts.spool) <= 3 + 2
                    is_open.set()
                    assert await running == "COMPLETED"
        assert len(learner.trajectories) == 20

    asyncio.run(main())


def test_a_spool_that_cannot_be_written_ends_the_pool_with_its_path(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("g", _echo())]
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    shutil.rmtree(tmp_path / "spool")
                    with pytest.raises(DiskError, match="No such file") as error:
                        await _run(parts)
        assert str(tmp_path / "spool") in str(error.value)
        assert not learner.failed

    asyncio.run(main())


def test_a_learner_that_never_answers_is_named_with_its_command(
    address: str, renderer: FormatRenderer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        learner_address = f"ipc://{tmp_path}/nobody.sock"
        async with parts_of(address, renderer, learner_address, tmp_path, budget_s=2.5) as parts:
            running = asyncio.create_task(_run(parts))
            await until(lambda: parts.board.snapshot().waits)
            assert learner_address in parts.board.snapshot().waits[0].reason
            with pytest.raises(UnreachableError, match="longturn learn") as error:
                await running
            assert learner_address in str(error.value)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert any(vars(record).get("start_with") == "longturn learn" for record in caplog.records)


def test_a_restarted_learner_is_greeted_again_and_gets_everything_that_was_not_acked(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("g", _echo())]
            first = ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], ack_for=lambda message: None)
            async with parts_of(address, renderer, first.address, tmp_path) as parts:
                with first:
                    running = asyncio.create_task(_run(parts))
                    await until(lambda: len(parts.spool) == 4)
                second = ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], run_epoch=2)
                with second:
                    assert await running == "COMPLETED"
            assert len(second.members("g")) == 4

    asyncio.run(main())


def test_many_welcomes_at_once_bring_every_trajectory_once(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    """An outage leaves a Hello every two seconds in the queue, and the learner answers them all."""

    def count(learner: ScriptedLearner, kind: type[Body]) -> int:
        return sum(isinstance(body, kind) for body in learner.received)

    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("g", _echo())]
            with ScriptedLearner(
                tmp_path, groups=groups, engine_urls=[engine.url], ack_for=lambda message: None
            ) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path, resend_s=60.0) as parts:
                    running = asyncio.create_task(_run(parts))
                    await until(lambda: count(learner, dispatch_pb2.SubmitTrajectory) == 4)
                    num_beats = count(learner, dispatch_pb2.Heartbeat)
                    learner.push(*[learner.welcome()] * 20)
                    await until(lambda: count(learner, dispatch_pb2.Heartbeat) >= num_beats + 20)
                    assert count(learner, dispatch_pb2.SubmitTrajectory) == 4
                    learner.run_epoch = 2
                    num_beats = count(learner, dispatch_pb2.Heartbeat)
                    learner.push(*[learner.welcome()] * 20)
                    await until(lambda: count(learner, dispatch_pb2.Heartbeat) >= num_beats + 20)
                    assert count(learner, dispatch_pb2.SubmitTrajectory) == 8
                    learner.push(dispatch_pb2.EndOfRun(reason="STOPPED"))
                    await running

    asyncio.run(main())


def test_a_new_run_begins_without_the_engines_and_versions_of_the_old_one(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            serving_engine(echo_script(tokenizer_path)) as old,
            serving_engine(echo_script(tokenizer_path)) as new,
        ):
            first = ScriptedLearner(
                tmp_path, groups=[], engine_urls=[old.url], run_epoch=5, policy_version=9, ends_by_itself=False
            )
            second = ScriptedLearner(tmp_path, groups=[group("g", _echo())], engine_urls=[new.url], run_id="run-2")
            async with parts_of(address, renderer, first.address, tmp_path) as parts:
                running = asyncio.create_task(_run(parts))
                with first:
                    await until(lambda: parts.metrics.snapshot().get("actors/policy/version") == 9)
                with second:
                    assert await running == "COMPLETED"
            assert {item.policy_versions for item in second.trajectories} == {frozenset({0})}
            assert len(second.members("g")) == 4
            assert not old.asks

    asyncio.run(main())


def test_a_learner_with_another_tokenizer_is_refused(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        with ScriptedLearner(tmp_path, groups=[], engine_urls=[], tokenizer_hash="other") as learner:
            async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                with pytest.raises(ConfigError, match=r"act\.renderer\.tokenizer"):
                    await _run(parts)

    asyncio.run(main())


def test_a_refusal_by_the_learner_ends_the_pool_with_its_words(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        with ScriptedLearner(tmp_path, groups=[], engine_urls=[], ends_by_itself=False) as learner:
            learner.on_message = lambda body: [dispatch_pb2.Refusal(reason="PROTOCOL_MISMATCH", message="upgrade")]
            async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                with pytest.raises(ConfigError, match="upgrade"):
                    await _run(parts)

    asyncio.run(main())


def test_weight_updates_lose_no_episode_and_leave_no_hole(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    """Every third turn meets an update: it is frozen and goes on, or is aborted and resumed."""

    async def main() -> None:
        draw = random.Random(2)
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group(f"g{index}", _echo(index), size=8) for index in range(8)]
            play = rules(max_member_retries=0)
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url], play=play) as learner:

                def update(ask: Ask, answer: Answer) -> Answer:
                    num = len(answer.ids)
                    if draw.random() > 0.33:
                        return answer
                    before = engine.weight_version
                    learner.policy_version += 1
                    engine.weight_version = str(learner.policy_version)
                    learner.push(learner.announcement())
                    cut = draw.randrange(num)
                    if draw.random() < 0.5:
                        return Answer(answer.ids[:cut], {"type": "abort", "message": "", "status_code": None},
                                      versions=((before, 0, cut),))  # fmt: skip
                    return Answer(answer.ids, versions=((before, 0, cut), (engine.weight_version, cut, num)))

                engine.interfere = update
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    await _run(parts)
        assert not learner.failed
        assert len(learner.trajectories) == 64
        for trajectory in learner.trajectories:
            assert trajectory.success
            for turn in trajectory.turns:
                assert turn.format_valid
                assert turn.reasoning == f"asked for {turn.action}"
                versions = [span.policy_version for span in turn.policy_spans]
                assert versions == sorted(versions)
        counts = parts.metrics.snapshot()
        assert counts["actors/turn/aborted_segments"] > 10
        assert "actors/turn/discarded_unconfirmed" not in counts
        assert max(len(turn.policy_spans) for item in learner.trajectories for turn in item.turns) > 1

    asyncio.run(main())


def test_episodes_of_a_killed_env_server_are_played_again(
    renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main(server: ServerProcess) -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            groups = [group("g", _echo())]
            engine.interfere = lambda ask, answer: None if len(engine.answers) >= 4 else answer
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[engine.url]) as learner:
                async with parts_of(
                    server.address, renderer, learner.address, tmp_path, request_timeout_s=1.0
                ) as parts:
                    running = asyncio.create_task(_run(parts, limit_s=90))
                    await until(lambda: len(engine.asks) >= 8)
                    server.kill()
                    engine.interfere = lambda ask, answer: answer
                    restarted = await asyncio.to_thread(ServerProcess, tmp_path / "second", port=server.port)
                    try:
                        assert await running == "COMPLETED"
                    finally:
                        restarted.stop()
        assert sorted(learner.members("g")) == [0, 1, 2, 3]
        assert not learner.failed
        assert parts.metrics.snapshot()["actors/episode/broken_episode_not_found"] == 4
        assert {item.retry_index for item in learner.trajectories} == {1}

    with server_process(tmp_path / "first") as server:
        asyncio.run(main(server))


def test_a_stopped_pool_ends_its_episodes_and_says_goodbye(
    address: str, renderer: FormatRenderer, tokenizer_path: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving_engine(echo_script(tokenizer_path)) as engine:
            engine.interfere = lambda ask, answer: None
            with ScriptedLearner(tmp_path, groups=[group("g", _echo())], engine_urls=[engine.url]) as learner:
                async with parts_of(address, renderer, learner.address, tmp_path) as parts:
                    running = asyncio.create_task(_run(parts))
                    await until(lambda: len(engine.asks) >= 4)
                    running.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await running
                await until(lambda: isinstance(learner.received[-1], dispatch_pb2.Goodbye))
        assert not learner.trajectories

    asyncio.run(main())


def test_two_pools_cannot_share_a_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(ConfigError, match=r"act\.pool_id"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()
