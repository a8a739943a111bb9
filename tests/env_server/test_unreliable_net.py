"""Calls that are delayed, dropped or duplicated on the way: each step is applied once all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from clients.config import EnvClientConfig
from clients.environment import EnvClient
from longturn.records import StepResult, Task
from longturn.v1 import environment_pb2, environment_pb2_grpc
from tests.env_server.loopback import Client, Player, loopback, start_request
from tests.support.unreliable_proxy import unreliable

HORIZON = 12
NUM_EPISODES = 12
T = TypeVar("T")
Stub = Any  # the generated stub of the asynchronous road exists for type checkers only


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that got lost, as it was."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise


def word_of(observation: str) -> str:
    """The word that the echo environment asks for."""
    return observation.partition("Say ")[2].partition(".")[0]


async def twin_hash(client: Client, index: int) -> bytes:
    """The last state hash of an episode that nothing happened to."""
    player = await client.start(index=index, knobs={"horizon": HORIZON})
    result = player.first
    while result.status == environment_pb2.EPISODE_STATUS_RUNNING:
        result = await player.step(word_of(result.observation))
    return result.state_hash


def test_unary_calls_over_an_unreliable_net_are_applied_once() -> None:
    async def play(stub: Stub, index: int) -> list[environment_pb2.StepResult]:
        request = start_request(index=index, knobs={"horizon": HORIZON})
        started = await until_answered(lambda: stub.StartEpisode(request))
        player = Player(stub, started.episode_id, started.episode_token, started.result)
        results = [started.result]
        while results[-1].status == environment_pb2.EPISODE_STATUS_RUNNING:
            action = word_of(results[-1].observation)
            results.append(await until_answered(lambda action=action: player.step(action)))
        return results

    async def main() -> None:
        async with loopback() as client, unreliable(client.server.address, seed=1, share=0.2) as (address, proxy):
            async with grpc.aio.insecure_channel(address) as channel:
                stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
                played = await asyncio.gather(*(play(stub, index) for index in range(NUM_EPISODES)))
            for index, results in enumerate(played):
                assert [result.turn_index for result in results] == list(range(HORIZON + 1))
                assert results[-1].success
                assert results[-1].state_hash == await twin_hash(client, index)
            assert client.metrics.snapshot()["server/episode/num_started"] == 2 * NUM_EPISODES
            kinds = ("delayed", "dropped before", "dropped after", "duplicated", "repeated late")
            assert all(proxy.faults[kind] >= 5 for kind in kinds), proxy.faults

    asyncio.run(main())


def test_our_client_over_an_unreliable_net_plays_every_episode_as_if_nothing_happened() -> None:
    async def play(envs: EnvClient, index: int) -> list[StepResult]:
        knobs = {"horizon": HORIZON, "step_sleep_ms": 2.0 * (index % 5)}  # else all steps travel in one message
        task = Task(environment="echo", task_id=f"echo/train/{index:06d}", knobs=knobs)
        episode = await envs.start(task)
        results = [episode.initial]
        while not results[-1].status.is_final:
            results.append(await episode.step(word_of(results[-1].observation)))
        return results

    async def main() -> None:
        async with loopback() as client, unreliable(client.server.address, seed=2, share=0.2) as (address, proxy):
            async with EnvClient(EnvClientConfig(address=address)) as envs:
                played = await asyncio.gather(*(play(envs, index) for index in range(NUM_EPISODES)))
                assert envs.num_reconnects >= 1
            for index, results in enumerate(played):
                assert [result.turn_index for result in results] == list(range(HORIZON + 1))
                assert results[-1].success
                assert results[-1].state_hash == await twin_hash(client, index)
            assert client.metrics.snapshot()["server/episode/num_started"] == 2 * NUM_EPISODES
            assert all(proxy.faults[kind] for kind in ("delayed", "duplicated", "repeated late", "broken")), (
                proxy.faults
            )

    asyncio.run(main())
