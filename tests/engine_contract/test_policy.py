"""The actor pool's policy on every engine: what the engine may do to a turn, and what the turn then holds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clients.config import SglangConfig
from clients.policies.base import Completion
from clients.policies.engines import Engine, EngineRegistry
from clients.policies.sglang import SglangPolicy
from learner.engine_client import DiskTransport, EngineClient, Target, UpdateRules
from longturn.errors import PolicyError
from longturn.metrics import Metrics
from longturn.records import FinishReason, LogprobConvention, SamplingParams
from tests.clients.proxy import CuttingProxy
from tests.engine_contract.contract import MAX_QUEUED, NUM_RUNNING, RARE_ID, Contract
from tests.engine_contract.test_generate import prompt_of
from tests.local_engine.tiny_models import chosen_logprobs, reference_logprobs
from tests.support.waiting import until

# Long turns are greedy, so that no stop token ends them by chance.
PROMPT = prompt_of(20, seed=70)


@asynccontextmanager
async def policy_on(
    contract: Contract,
    *,
    stop: int = RARE_ID,
    registry: EngineRegistry | None = None,
    url: str = "",
    **settings: float,
) -> AsyncIterator[tuple[SglangPolicy, Metrics]]:
    metrics = Metrics()
    config = SglangConfig.model_validate({"turn_budget_s": 90.0, "request_timeout_s": 60.0, **settings})
    engine = Engine(url=url or contract.client.base_url, api_key=contract.client.api_key)
    known = registry or EngineRegistry([engine])
    async with SglangPolicy(config, engines=known, stop_token_ids=(stop,), metrics=metrics) as policy:
        yield policy, metrics


async def turn(
    policy: SglangPolicy,
    prompt: Sequence[int] = PROMPT,
    *,
    key: str = "episode",
    num_tokens: int = 24,
    temperature: float = 1.0,
    seed: int = 5,
) -> Completion:
    sampling = SamplingParams(temperature=temperature, max_new_tokens=num_tokens, seed=seed)
    return await policy.complete(prompt, sampling, episode_key=key, turn_index=0)


async def load(contract: Contract, folder: str, version: int, *, pause_mode: str, flush_cache: bool = True) -> None:
    """Bring the engine to other weights as a learner does."""
    client = EngineClient(contract.client.base_url, contract.client.api_key)
    rules = UpdateRules(pause_mode=pause_mode, flush_cache=flush_cache, timeout_s=60.0, transport=DiskTransport())
    target = Target(policy_version=version, training_step=version, folder=Path(folder))
    await asyncio.to_thread(client.load, target, rules)


def assert_spans_exact(contract: Contract, prompt: Sequence[int], completion: Completion, folders: list[str]) -> None:
    """Every token's logprob is that of the weights its span names; `folders` by policy version."""
    scores = {name: chosen_logprobs(contract.models[name], prompt, completion.token_ids) for name in set(folders)}
    edges = [0, *(span.end for span in completion.policy_spans)]
    assert [span.start for span in completion.policy_spans] == edges[:-1]
    assert edges[-1] == len(completion.token_ids)
    for span in completion.policy_spans:
        expected = scores[folders[span.policy_version]][span.start : span.end]
        assert list(completion.logprobs[span.start : span.end]) == pytest.approx(expected, abs=contract.tolerance)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_turn_holds_what_the_engine_sampled_and_knows_who_it_was(contract: Contract, temperature: float) -> None:
    async def main() -> None:
        async with policy_on(contract) as (policy, metrics):
            completion = await turn(policy, temperature=temperature)
        expected = chosen_logprobs(contract.models["v0"], PROMPT, completion.token_ids, temperature=temperature)
        assert list(completion.logprobs) == pytest.approx(expected, abs=contract.tolerance)
        assert (completion.engine.name, completion.engine.version) == contract.identity
        assert completion.engine.logprob_convention is LogprobConvention.AFTER_TEMPERATURE
        assert "actors/engine/num_unnamed" not in metrics.snapshot()

    asyncio.run(main())


def test_a_stop_token_ends_the_turn_and_is_its_last_id(contract: Contract) -> None:
    async def main() -> None:
        async with policy_on(contract) as (policy, _):
            free = await turn(policy, temperature=0.0)
        stop = free.token_ids[6]
        first = free.token_ids.index(stop)
        async with policy_on(contract, stop=stop) as (policy, _):
            stopped = await turn(policy, temperature=0.0)
            exactly = await turn(policy, temperature=0.0, num_tokens=first + 1)
            cut = await turn(policy, temperature=0.0, num_tokens=max(1, first))
        assert stopped.token_ids == exactly.token_ids == free.token_ids[: first + 1]
        assert stopped.finish_reason is FinishReason.STOP
        assert len(stopped.logprobs) == first + 1
        table = reference_logprobs(contract.models["v0"], [*PROMPT, *stopped.token_ids])
        assert stopped.logprobs[-1] == pytest.approx(float(table[-2].max()), abs=contract.tolerance)
        assert cut.finish_reason is FinishReason.LENGTH or first == 0

    asyncio.run(main())


@pytest.mark.parametrize("pause_mode", ["retract", "abort"])
def test_an_update_in_the_middle_of_a_turn_leaves_a_seam_and_no_hole(contract: Contract, pause_mode: str) -> None:
    async def main() -> None:
        async with policy_on(contract) as (policy, metrics):
            running = asyncio.create_task(turn(policy, num_tokens=400, temperature=0.0))
            await until(lambda: contract.client.num_running() == 1)
            await load(contract, "v1", 1, pause_mode=pause_mode)
            completion = await running
        assert len(completion.token_ids) == 400
        assert [span.policy_version for span in completion.policy_spans] == [0, 1]
        assert_spans_exact(contract, PROMPT, completion, ["v0", "v1"])
        assert metrics.snapshot().get("actors/turn/aborted_segments", 0) == (pause_mode == "abort")

    asyncio.run(main())


def test_a_frozen_turn_goes_on_under_new_weights_and_says_where(contract: Contract) -> None:
    async def main() -> None:
        async with policy_on(contract) as (policy, _):
            running = asyncio.create_task(turn(policy, num_tokens=400, temperature=0.0))
            await until(lambda: contract.client.num_running() == 1)
            await load(contract, "v1", 1, pause_mode="in_place", flush_cache=False)
            completion = await running
        first, second = completion.policy_spans
        assert (first.policy_version, second.policy_version) == (0, 1)
        assert second.end == len(completion.token_ids)
        # Its cache is that of the old weights, so only what these sampled can be recomputed.
        expected = chosen_logprobs(contract.models["v0"], PROMPT, completion.token_ids)[: first.end]
        assert list(completion.logprobs[: first.end]) == pytest.approx(expected, abs=contract.tolerance)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("num_turns", "num_updates"),
    [
        (2 * NUM_RUNNING, 10),
        pytest.param(
            256,
            100,
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif("LONGTURN_SOAK" not in os.environ, reason="takes minutes; set LONGTURN_SOAK=1"),
                pytest.mark.timeout(900),
            ],
        ),
    ],
)
def test_many_updates_while_many_turns_run_lose_no_turn_and_no_token(
    contract: Contract, num_turns: int, num_updates: int
) -> None:
    async def main() -> None:
        prompts = [prompt_of(12, seed=900 + index) for index in range(num_turns)]
        async with policy_on(contract, turn_budget_s=600.0) as (policy, _):
            running = [
                asyncio.create_task(turn(policy, prompt, key=f"episode-{index}", num_tokens=120, temperature=0.0))
                for index, prompt in enumerate(prompts)
            ]
            for version in range(1, num_updates + 1):
                await load(contract, f"v{version % 2}", version, pause_mode=("retract", "abort")[version % 2])
            completions = await asyncio.gather(*running)
        for prompt, completion in zip(prompts, completions, strict=True):
            assert len(completion.token_ids) == 120
            assert_spans_exact(contract, prompt, completion, [f"v{version % 2}" for version in range(num_updates + 1)])

    asyncio.run(main())


def test_prompts_that_are_too_long_fail_their_own_episodes_only(contract: Contract) -> None:
    async def main() -> None:
        async with policy_on(contract) as (policy, metrics):
            good = [turn(policy, key=f"good-{index}") for index in range(8)]
            bad = [turn(policy, [5] * 5000, key=f"bad-{index}") for index in range(50)]
            results = await asyncio.gather(*good, *bad, return_exceptions=True)
        assert all(isinstance(result, Completion) for result in results[:8])
        for index, result in enumerate(results[8:]):
            assert isinstance(result, PolicyError)
            assert result.reason == "ENGINE_REFUSED"
            assert f"bad-{index}," in str(result)
        assert metrics.snapshot()["actors/engine/refused_requests"] == 50

    asyncio.run(main())


def test_more_turns_than_the_engine_takes_are_all_played(contract: Contract) -> None:
    async def main() -> None:
        num = NUM_RUNNING + MAX_QUEUED + 24
        async with policy_on(contract) as (policy, metrics):
            turns = [turn(policy, prompt_of(9, seed=index), key=f"e-{index}", num_tokens=16) for index in range(num)]
            completions = await asyncio.gather(*turns)
        assert len(completions) == num
        assert metrics.snapshot()["actors/engine/failed_requests"] >= 1

    asyncio.run(main())


def test_a_cut_connection_costs_a_turn_nothing_but_time(contract: Contract) -> None:
    async def main() -> None:
        with CuttingProxy(contract.client.base_url) as proxy:
            async with policy_on(contract, url=f"http://{proxy.address}") as (policy, metrics):
                running = asyncio.create_task(turn(policy, num_tokens=300, temperature=0.0))
                await until(lambda: contract.client.num_running() == 1)
                proxy.cut()
                completion = await running
        assert_spans_exact(contract, PROMPT, completion, ["v0"])
        assert metrics.snapshot()["actors/engine/lost_requests"] == 1

    asyncio.run(main())


def test_an_engine_that_does_not_answer_is_asked_again(contract: Contract) -> None:
    async def main() -> None:
        async with policy_on(contract, request_timeout_s=1.5) as (policy, metrics):
            contract.client.post("/pause_generation", {"mode": "retract"})
            running = asyncio.create_task(turn(policy, num_tokens=3))
            await until(lambda: metrics.snapshot().get("actors/engine/lost_requests", 0) >= 2)
            contract.client.post("/continue_generation")
            completion = await running
        assert_spans_exact(contract, PROMPT, completion, ["v0"])

    asyncio.run(main())


def test_tokens_of_weights_that_nobody_announced_are_no_data(contract: Contract) -> None:
    async def main() -> None:
        url, key = contract.client.base_url, contract.client.api_key
        registry = EngineRegistry()
        registry.announce([Engine(url=url, policy_version=0, api_key=key)], policy_version=0, run_epoch=1)
        async with policy_on(contract, registry=registry, confirm_wait_s=0.2) as (policy, metrics):
            await load(contract, "v1", 1, pause_mode="retract")
            running = asyncio.create_task(turn(policy, num_tokens=4))
            await until(lambda: metrics.snapshot().get("actors/turn/discarded_unconfirmed", 0) >= 1)
            registry.announce([Engine(url=url, policy_version=1, api_key=key)], policy_version=1, run_epoch=1)
            completion = await running
        assert [span.policy_version for span in completion.policy_spans] == [1]
        assert_spans_exact(contract, PROMPT, completion, ["v0", "v1"])

    asyncio.run(main())


def test_a_salt_per_version_shares_no_prefix_across_weights(contract: Contract) -> None:
    async def main() -> None:
        url, key = contract.client.base_url, contract.client.api_key
        registry = EngineRegistry()

        def announce(version: int) -> None:
            engine = Engine(url=url, policy_version=version, api_key=key, cache_salt=f"v{version}")
            registry.announce([engine], policy_version=version, run_epoch=1)

        announce(0)
        async with policy_on(contract, registry=registry) as (policy, _):
            await turn(policy)
            await load(contract, "v1", 1, pause_mode="retract", flush_cache=False)
            announce(1)
            fresh = await turn(policy)
            again = await turn(policy)
        assert fresh.cached_tokens == 0
        assert again.cached_tokens == len(PROMPT) - 1
        for completion in (fresh, again):
            assert_spans_exact(contract, PROMPT, completion, ["v0", "v1"])

    asyncio.run(main())


def test_a_kept_cache_is_reused_and_its_logprobs_are_not_those_of_the_new_weights(contract: Contract) -> None:
    async def main() -> None:
        async with policy_on(contract) as (policy, _):
            await turn(policy)
            await load(contract, "v1", 1, pause_mode="retract", flush_cache=False)
            completion = await turn(policy)
        assert completion.cached_tokens == len(PROMPT) - 1
        expected = chosen_logprobs(contract.models["v1"], PROMPT, completion.token_ids)
        gaps = [abs(one - other) for one, other in zip(completion.logprobs, expected, strict=True)]
        assert max(gaps) > 10 * contract.tolerance

    asyncio.run(main())
