"""A client that is too fast is told when to come back; the others do not notice."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.config import EnvClientConfig
from clients.environment import EnvClient
from env_server.rates import BURST_S, LONGEST_RETRY_S, Rates
from env_server.refusals import RefusedError
from longturn.records import Task
from tests.env_server.loopback import error_info, loopback, retry_delay_s


class Clock:
    """Time as the limiter sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("env_server.rates.time.monotonic", lambda: self.now_s)


def test_a_seconds_worth_may_come_at_once_and_then_the_rate_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rates = Clock(monkeypatch), Rates(10.0)
    for _ in range(10):
        rates.take("a")
    delays_s: list[float] = []
    for _ in range(5):
        with pytest.raises(RefusedError) as caught:
            rates.take("a")
        assert caught.value.reason == "RATE_LIMITED"
        delays_s.append(caught.value.retry_after_s or 0.0)
    assert delays_s == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    for _ in range(5):  # each comes at the time it was told
        clock.now_s += 0.1
        rates.take("a")
    rates.take("b")


def test_a_slow_rate_lets_one_call_through_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rates = Clock(monkeypatch), Rates(0.01)
    rates.take("a")
    for _ in range(3):
        with pytest.raises(RefusedError):
            rates.take("a")
    clock.now_s += 100.0
    rates.take("a")


@given(
    rate=st.floats(min_value=0.5, max_value=1000.0),
    pauses_s=st.lists(st.floats(min_value=0.0, max_value=2.0), max_size=60),
)
def test_no_window_holds_more_than_the_rate_and_one_burst(rate: float, pauses_s: list[float]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock, rates = Clock(monkeypatch), Rates(rate)
        taken_s: list[float] = []
        delays_s: list[float] = []
        for pause_s in pauses_s:
            clock.now_s += pause_s
            try:
                rates.take("a")
                taken_s.append(clock.now_s)
            except RefusedError as refusal:
                delays_s.append(refusal.retry_after_s or 0.0)
        assert all(0.0 < delay_s <= max(LONGEST_RETRY_S, 1 / rate) + 1e-6 for delay_s in delays_s)
        for (i, first_s), (j, last_s) in itertools.combinations(enumerate(taken_s), 2):
            assert j - i + 1 <= rate * (last_s - first_s) + max(rate * BURST_S, 1.0) + 1e-3


def test_quiet_clients_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rates = Clock(monkeypatch), Rates(1.0)
    for index in range(100):
        rates.take(f"client-{index}")
    clock.now_s += 0.5
    rates.take("late")
    clock.now_s += 0.75
    rates.forget_idle()
    assert list(rates._clients) == ["late"]


def test_a_fast_client_is_refused_with_a_delay_and_a_repeat_costs_nothing() -> None:
    async def main() -> None:
        async with loopback(max_rate_per_client=4.0) as client:
            player = await client.start(client_id="fast")
            for _ in range(3):
                first = await player.step()
            assert await player.step(turn_index=2) == first

            async def rush() -> None:
                for _ in range(20):
                    await player.step()

            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rush()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error_info(caught.value).reason == "RATE_LIMITED"
            assert error_info(caught.value).metadata["setting"] == "env_server.max_rate_per_client"
            assert 0.0 < retry_delay_s(caught.value) <= 1.0
            assert (await (await client.start(client_id="other")).step()).turn_index == 1

    asyncio.run(main())


def test_our_client_waits_and_every_step_is_taken() -> None:
    async def main() -> None:
        async with loopback(max_rate_per_client=100.0) as client:
            task = Task(environment="echo", task_id="echo/train/000001")
            async with EnvClient(EnvClientConfig(address=client.server.address)) as envs:
                episodes = await asyncio.gather(*(envs.start(task, seed=seed) for seed in range(40)))
                for turn_index in range(4):
                    results = await asyncio.gather(*(episode.step("amber") for episode in episodes))
                    assert {result.turn_index for result in results} == {turn_index + 1}

    asyncio.run(main())
