"""The compute thread and its asyncio side, with a scripted backend."""

import asyncio

import pytest
from torch import Tensor

from local_engine.backend import StepInput
from local_engine.engine import Engine
from local_engine.errors import QueueFullError, WeightsError
from local_engine.scheduler import Scheduler
from local_engine.slots import SlotTable
from longturn.metrics import Metrics
from tests.local_engine.test_scheduler import ScriptedBackend, request_for


class CrashingBackend(ScriptedBackend):
    """Has a bug."""

    def forward(self, step: StepInput) -> Tensor:
        raise ZeroDivisionError("a bug")


def engine_for(backend: ScriptedBackend, *, max_unfinished: int = 10) -> Engine:
    slots = SlotTable(num_slots=4, slot_tokens=200_000, can_rewind=True)
    metrics = Metrics()
    scheduler = Scheduler(
        backend, slots, max_running_requests=4, prefill_tokens_per_step=16, codec=None, metrics=metrics
    )
    return Engine(scheduler, max_unfinished=max_unfinished, metrics=metrics)


def test_requests_run_and_stop_ends_the_thread() -> None:
    async def main() -> None:
        engine = engine_for(ScriptedBackend())
        running = asyncio.create_task(engine.run())
        requests = [request_for([index, 2]) for index in range(6)]
        await engine.generate(requests)
        assert [request.output_ids for request in requests] == [[3, 3, 3, 3]] * 6
        engine.stop()
        await running

    asyncio.run(main())


def test_a_crash_of_the_compute_thread_surfaces_and_leaves_no_one_waiting() -> None:
    async def main() -> None:
        engine = engine_for(CrashingBackend())
        running = asyncio.create_task(engine.run())
        waiting = asyncio.create_task(engine.generate([request_for([1, 2])]))
        with pytest.raises(ZeroDivisionError):
            await running
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())


def test_a_full_engine_refuses_all_or_nothing() -> None:
    async def main() -> None:
        engine = engine_for(ScriptedBackend(), max_unfinished=3)
        with pytest.raises(QueueFullError):
            await engine.generate([request_for([index, 2]) for index in range(4)])
        running = asyncio.create_task(engine.run())
        await engine.generate([request_for([index, 2]) for index in range(3)])
        engine.stop()
        await running

    asyncio.run(main())


def test_an_error_of_a_command_reaches_its_caller_and_the_engine_lives() -> None:
    async def main() -> None:
        engine = engine_for(ScriptedBackend())
        running = asyncio.create_task(engine.run())
        with pytest.raises(WeightsError):
            await engine.call(lambda scheduler: scheduler.load({}, version=None, flush_cache=True))
        assert await engine.call(lambda scheduler: scheduler.is_healthy)
        engine.stop()
        await running

    asyncio.run(main())


def test_cancelling_a_generation_aborts_it() -> None:
    async def main() -> None:
        engine = engine_for(ScriptedBackend())
        running = asyncio.create_task(engine.run())
        request = request_for([1, 2], max_new_tokens=199_000)
        generation = asyncio.create_task(engine.generate([request]))
        while not await engine.call(lambda scheduler: scheduler.num_running):
            pass
        generation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await generation
        assert await engine.call(lambda scheduler: scheduler.num_running) == 0
        engine.stop()
        await running

    asyncio.run(main())
