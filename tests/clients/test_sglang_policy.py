"""SglangPolicy over real HTTP: what an engine may do to a turn, and what becomes of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from clients.calls import Backoff
from clients.config import SglangConfig
from clients.policies.base import Completion, derive_seed
from clients.policies.engines import Engine, EngineRegistry
from clients.policies.sglang import SglangPolicy
from longturn.errors import PolicyError
from longturn.metrics import Metrics
from longturn.records import FinishReason, LogprobConvention, PolicySpan, SamplingParams
from longturn.status import StatusBoard
from tests.clients.scripted_engine import Answer, Ask, ScriptedEngine, refuse, serving_engine
from tests.support.waiting import until

IDS = tuple(range(100, 110))
ABORT = {"type": "abort", "message": "paused", "status_code": None, "err_type": None}


def _script(ask: Ask) -> list[int]:
    """The rest of IDS after what the prompt already holds of it."""
    done = sum(index >= 100 for index in ask.input_ids)
    return list(IDS[done:])


@asynccontextmanager
async def _policy(
    *engines: ScriptedEngine,
    registry: EngineRegistry | None = None,
    board: StatusBoard | None = None,
    backoff: Backoff | None = None,
    **settings: float | str,
) -> AsyncIterator[tuple[SglangPolicy, Metrics]]:
    metrics = Metrics()
    config = SglangConfig.model_validate({"turn_budget_s": 20.0, "request_timeout_s": 5.0, **settings})
    known = registry or EngineRegistry([Engine(url=engine.url, api_key="secret") for engine in engines])
    policy = SglangPolicy(config, engines=known, stop_token_ids=(109,), metrics=metrics, board=board, backoff=backoff)
    async with policy:
        yield policy, metrics


async def _complete(policy: SglangPolicy, *, key: str = "episode-1", max_new_tokens: int = 16) -> Completion:
    sampling = SamplingParams(temperature=0.7, max_new_tokens=max_new_tokens, seed=11)
    return await policy.complete([1, 2, 3], sampling, episode_key=key, turn_index=4)


def test_a_completion_is_what_the_engine_sampled() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            completion = await _complete(policy)
        assert completion.token_ids == IDS
        assert completion.logprobs == (-0.5,) * 10
        assert completion.policy_spans == (PolicySpan(start=0, end=10, policy_version=0),)
        assert completion.finish_reason is FinishReason.STOP
        assert (completion.engine.name, completion.engine.version) == ("scripted", "7")
        assert completion.cached_tokens == 3
        [ask] = engine.asks
        assert ask.input_ids == (1, 2, 3)
        assert ask.headers["Authorization"] == "Bearer secret"
        assert ask.sampling["temperature"] == 0.7
        assert ask.sampling["stop_token_ids"] == [109]
        assert ask.sampling["sampling_seed"] == derive_seed(11, 4, 0)

    asyncio.run(main())


@pytest.mark.parametrize("info", [None, ["no object"]])
def test_an_engine_that_does_not_say_what_it_is_is_counted_and_logged_once(
    info: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, metrics):
            engine.info = info
            keys = [f"episode-{number}" for number in range(4)]
            completions = await asyncio.gather(*(_complete(policy, key=key) for key in keys), _complete(policy))
        assert {(item.engine.name, item.engine.version) for item in completions} == {("", "")}
        assert engine.num_info_asks == 1
        assert metrics.snapshot()["actors/engine/num_unnamed"] == 1

    asyncio.run(main())
    assert [record.message for record in caplog.records].count("engine does not say what it is") == 1


def test_an_engine_that_tells_its_version_only_gets_no_name() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, metrics):
            engine.info = {"version": "0.5.23"}
            completion = await _complete(policy)
        assert (completion.engine.name, completion.engine.version) == ("", "0.5.23")
        assert "actors/engine/num_unnamed" not in metrics.snapshot()

    asyncio.run(main())


def test_sglang_is_known_by_a_field_of_its_own_and_asked_for_its_logprobs_once() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            engine.info = {"version": "0.5.23", "internal_states": []}
            completions = [await _complete(policy, key=key) for key in ("one", "two")]
        assert {(item.engine.name, item.engine.version) for item in completions} == {("sglang", "0.5.23")}
        assert completions[0].engine.logprob_convention is LogprobConvention.AFTER_TEMPERATURE
        assert engine.num_probes == 2

    asyncio.run(main())


def test_logprobs_before_temperature_are_data_at_temperature_1_and_refused_elsewhere() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            engine.info, engine.is_tempered = {"version": "0.5.23", "internal_states": []}, False
            sampling = SamplingParams(temperature=1.0, max_new_tokens=16, seed=11)
            completion = await policy.complete([1, 2, 3], sampling, episode_key="one", turn_index=0)
            assert completion.engine.logprob_convention is LogprobConvention.BEFORE_TEMPERATURE
            with pytest.raises(PolicyError, match="SGLANG_RETURN_ORIGINAL_LOGPROB") as error:
                await _complete(policy)
            assert error.value.reason == "LOGPROB_CONVENTION"

    asyncio.run(main())


def test_an_engine_that_was_lost_is_asked_again() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine, request_timeout_s=0.5) as (policy, _):
            await _complete(policy)
            engine.info = {"engine": "scripted", "version": "8", "logprobs": "after temperature"}
            engine.interfere = lambda ask, answer: None if ask.rid.endswith(":0.") else answer
            completion = await _complete(policy, key="two")
        assert completion.engine.version == "8"

    asyncio.run(main())


def test_no_id_of_a_request_begins_another() -> None:
    async def main() -> None:
        soon = Backoff(first_s=0.001, most_s=0.001)
        async with serving_engine(_script) as engine, _policy(engine, backoff=soon) as (policy, _):
            engine.interfere = lambda ask, answer: refuse(503) if len(engine.asks) <= 11 else answer
            await _complete(policy)
        rids = [ask.rid for ask in engine.asks]
        assert len(set(rids)) == 12
        assert not any(one != other and other.startswith(one) for one in rids for other in rids)

    asyncio.run(main())


def test_a_cache_salt_and_a_grammar_are_sent() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine:
            registry = EngineRegistry([Engine(url=engine.url, cache_salt="v7")])
            async with _policy(registry=registry, regex="go (north|south)") as (policy, _):
                await _complete(policy)
        [ask] = engine.asks
        assert ask.cache_salt == "v7"
        assert ask.sampling["regex"] == "go (north|south)"

    asyncio.run(main())


def test_version_spans_of_a_frozen_request_become_policy_spans() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            engine.interfere = lambda ask, answer: Answer(answer.ids, versions=(("6", 0, 4), ("7", 4, 10)))
            completion = await _complete(policy)
        assert completion.policy_spans == (
            PolicySpan(start=0, end=4, policy_version=6),
            PolicySpan(start=4, end=10, policy_version=7),
        )

    asyncio.run(main())


def test_an_aborted_request_is_resumed_by_its_prefix_with_the_remaining_budget() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, metrics):
            cuts = iter([4, 0, 3])

            def cut(ask: Ask, answer: Answer) -> Answer:
                num = next(cuts, None)
                engine.weight_version = {4: "1", 0: "2", 3: "2", None: "3"}[num]
                return answer if num is None else Answer(answer.ids[:num], ABORT)

            engine.interfere = cut
            completion = await _complete(policy, max_new_tokens=12)
        assert completion.token_ids == IDS
        assert completion.policy_spans == (
            PolicySpan(start=0, end=4, policy_version=1),
            PolicySpan(start=4, end=7, policy_version=2),
            PolicySpan(start=7, end=10, policy_version=3),
        )
        prompts = [ask.input_ids for ask in engine.asks]
        assert prompts == [(1, 2, 3), (1, 2, 3, *IDS[:4]), (1, 2, 3, *IDS[:4]), (1, 2, 3, *IDS[:7])]
        assert [ask.sampling["max_new_tokens"] for ask in engine.asks] == [12, 8, 8, 5]
        assert metrics.snapshot()["actors/turn/aborted_segments"] == 3

    asyncio.run(main())


def test_an_abort_at_the_end_of_the_budget_is_a_length_stop() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            engine.interfere = lambda ask, answer: Answer(answer.ids, ABORT)
            completion = await _complete(policy, max_new_tokens=6)
        assert completion.token_ids == IDS[:6]
        assert completion.finish_reason is FinishReason.LENGTH

    asyncio.run(main())


def test_a_request_that_is_refused_is_not_repeated_and_names_its_episode() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            engine.interfere = lambda ask, answer: refuse(400)
            with pytest.raises(PolicyError, match=r"episode-1, turn 4.*400") as error:
                await _complete(policy)
            assert error.value.reason == "ENGINE_REFUSED"
            assert len(engine.asks) == 1
            engine.interfere = lambda ask, answer: Answer(
                (), {"type": "abort", "message": "too long", "status_code": 400, "err_type": "BadRequest"}
            )
            with pytest.raises(PolicyError, match="too long"):
                await _complete(policy)
            assert len(engine.asks) == 2

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["status", "silence", "hang_up"])
def test_a_failed_request_is_repeated_on_another_engine(kind: str) -> None:
    async def main() -> None:
        async with (
            serving_engine(_script) as one,
            serving_engine(_script) as two,
            _policy(one, two, request_timeout_s=0.5) as (policy, metrics),
        ):
            for engine in (one, two):
                engine.interfere = lambda ask, answer: _fail(kind) if ask.rid.endswith(":0.") else answer
            completions = [await _complete(policy, key=f"episode-{number}") for number in range(4)]
        assert all(completion.token_ids == IDS for completion in completions)
        keys_one, keys_two = ({ask.episode_key for ask in engine.asks} for engine in (one, two))
        assert keys_one == keys_two == {f"episode-{number}" for number in range(4)}
        counts = metrics.snapshot()
        assert counts.get("actors/engine/lost_requests", 0) + counts.get("actors/engine/failed_requests", 0) == 4

    def _fail(kind: str) -> web.Response | None:
        if kind == "status":
            return refuse(503)
        if kind == "silence":
            return None
        raise ConnectionResetError  # aiohttp's server answers 500 or drops the connection

    asyncio.run(main())


def test_engines_that_stay_away_end_the_turn_with_the_last_cause() -> None:
    async def main() -> None:
        registry = EngineRegistry([Engine(url="http://127.0.0.1:9")])
        async with _policy(registry=registry, turn_budget_s=0.5) as (policy, _):
            with pytest.raises(PolicyError, match=r"episode-1, turn 4.*127\.0\.0\.1:9") as error:
                await _complete(policy)
            assert error.value.reason == "ENGINE_AWAY"
        async with _policy(registry=EngineRegistry()) as (policy, _):
            with pytest.raises(PolicyError, match="no engine is in rotation"):
                await _complete(policy)

    asyncio.run(main())


@pytest.mark.parametrize("logprob", [math.nan, math.inf, 0.5])
def test_a_broken_logprob_ends_the_episode(logprob: float) -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            engine.interfere = lambda ask, answer: Answer(answer.ids, logprob=logprob)
            with pytest.raises(PolicyError, match="episode-1") as error:
                await _complete(policy)
            assert error.value.reason == "BAD_LOGPROBS"

    asyncio.run(main())


@pytest.mark.parametrize(
    "versions", [(("1", 0, 4),), (("1", 0, 4), ("2", 5, 10)), (("1", 0, 6), ("2", 5, 10)), (("1", 1, 10),)]
)
def test_spans_with_gaps_or_overlaps_are_refused(versions: tuple[tuple[str, int, int], ...]) -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine, _policy(engine) as (policy, _):
            engine.interfere = lambda ask, answer: Answer(answer.ids, versions=versions)
            with pytest.raises(PolicyError) as error:
                await _complete(policy)
            assert error.value.reason == "BAD_REPLY"

    asyncio.run(main())


def _announced(engine: ScriptedEngine, version: int, run_epoch: int = 1) -> EngineRegistry:
    registry = EngineRegistry()
    registry.announce([Engine(url=engine.url, policy_version=version)], policy_version=version, run_epoch=run_epoch)
    return registry


def test_a_turn_of_an_unconfirmed_version_waits_for_its_announcement() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine:
            registry = _announced(engine, 4)
            async with _policy(registry=registry) as (policy, metrics):
                engine.weight_version = "5"
                turn = asyncio.create_task(_complete(policy))
                await until(lambda: engine.answers)
                registry.announce([Engine(url=engine.url, policy_version=5)], policy_version=5, run_epoch=1)
                assert (await turn).policy_spans[0].policy_version == 5
                assert "actors/turn/discarded_unconfirmed" not in metrics.snapshot()

    asyncio.run(main())


@pytest.mark.parametrize("version", ["9", "default"])
def test_a_turn_of_a_version_that_nobody_announces_is_discarded(version: str) -> None:
    async def main() -> None:
        async with (
            serving_engine(_script) as engine,
            _policy(registry=_announced(engine, 4), confirm_wait_s=0.1) as (policy, metrics),
        ):
            engine.weight_version = version

            def recover(ask: Ask, answer: Answer) -> Answer:
                if len(engine.answers) == 1:
                    engine.weight_version = "4"
                return answer

            engine.interfere = recover
            completion = await _complete(policy)
            assert completion.policy_spans == (PolicySpan(start=0, end=10, policy_version=4),)
            assert metrics.snapshot()["actors/turn/discarded_unconfirmed"] == 1

    asyncio.run(main())


def test_a_new_epoch_does_not_confirm_what_the_old_one_left_open() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine:
            registry = _announced(engine, 4)
            async with _policy(registry=registry) as (policy, metrics):
                engine.weight_version = "5"
                turn = asyncio.create_task(_complete(policy))
                await until(lambda: engine.answers)
                registry.announce([Engine(url=engine.url, policy_version=5)], policy_version=5, run_epoch=2)
                await turn
                assert len(engine.asks) == 2
                assert metrics.snapshot()["actors/turn/discarded_unconfirmed"] == 1

    asyncio.run(main())


def test_a_turn_waits_while_no_engine_is_announced_and_says_so() -> None:
    async def main() -> None:
        board = StatusBoard("actors", Metrics())
        async with serving_engine(_script) as engine:
            registry = _announced(engine, 0)
            registry.announce([], policy_version=0, run_epoch=1)
            async with _policy(registry=registry, board=board) as (policy, _):
                turn = asyncio.create_task(_complete(policy))
                await until(lambda: board.snapshot().waits or turn.done())
                [wait] = board.snapshot().waits
                assert (wait.peer, wait.reason) == ("engine", "no engine is in rotation")
                registry.announce([Engine(url=engine.url, policy_version=0)], policy_version=0, run_epoch=1)
                assert (await turn).token_ids == IDS
                assert not board.snapshot().waits

    asyncio.run(main())


def test_a_turn_that_gets_no_engine_within_its_budget_fails() -> None:
    async def main() -> None:
        registry = EngineRegistry()
        registry.announce([], policy_version=0, run_epoch=1)
        async with _policy(registry=registry, turn_budget_s=0.2) as (policy, _):
            with pytest.raises(PolicyError, match=r"episode-1, turn 4.*within 0\.2 s") as error:
                await _complete(policy)
            assert error.value.reason == "NO_ENGINE"

    asyncio.run(main())


def test_weights_that_an_engine_had_replaced_before_the_request_are_discarded() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine:
            registry = _announced(engine, 4)
            registry.announce([Engine(url=engine.url, policy_version=5)], policy_version=5, run_epoch=1)
            async with _policy(registry=registry) as (policy, metrics):

                def restart(ask: Ask, answer: Answer) -> Answer:
                    spans = (("4", 0, 3), ("5", 3, 10)) if not engine.answers else (("5", 0, 10),)
                    return Answer(answer.ids, versions=spans)

                engine.interfere = restart
                completion = await _complete(policy)
            assert completion.policy_spans == (PolicySpan(start=0, end=10, policy_version=5),)
            assert metrics.snapshot()["actors/turn/discarded_stale"] == 1

    asyncio.run(main())


def test_a_version_that_was_current_when_the_request_was_sent_is_data() -> None:
    async def main() -> None:
        async with serving_engine(_script) as engine:
            registry = _announced(engine, 4)
            async with _policy(registry=registry) as (policy, metrics):
                engine.hold.clear()
                engine.weight_version = "4"
                turn = asyncio.create_task(_complete(policy))
                await until(lambda: engine.asks)
                registry.announce([Engine(url=engine.url, policy_version=5)], policy_version=5, run_epoch=1)
                engine.hold.set()
                assert (await turn).policy_spans == (PolicySpan(start=0, end=10, policy_version=4),)
                assert "actors/turn/discarded_stale" not in metrics.snapshot()

    asyncio.run(main())


def test_an_older_epoch_or_version_changes_nothing() -> None:
    registry = EngineRegistry()
    new = [Engine(url="http://new", policy_version=7)]
    old = [Engine(url="http://old", policy_version=8)]
    assert registry.announce(new, policy_version=7, run_epoch=3)
    assert not registry.announce(old, policy_version=8, run_epoch=2)
    assert not registry.announce(old, policy_version=6, run_epoch=3)
    assert registry.engines == tuple(new)
    assert not registry.is_confirmed({8})


def test_episodes_stick_to_their_engine_and_move_only_when_it_leaves() -> None:
    urls = [f"http://engine-{number}" for number in range(4)]
    keys = [f"episode-{number}" for number in range(400)]
    full = EngineRegistry([Engine(url=url) for url in urls])
    reduced = EngineRegistry([Engine(url=url) for url in urls[1:]])
    before = {key: full.choose(key).url for key in keys}
    after = {key: reduced.choose(key).url for key in keys}
    assert all(before[key] == after[key] for key in keys if before[key] != urls[0])
    shares = [sum(url == chosen for chosen in before.values()) for url in urls]
    assert max(shares) <= 1.5 * len(keys) / len(urls)
