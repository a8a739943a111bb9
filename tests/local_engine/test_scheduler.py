"""What happens when the backend breaks: a scripted backend stands in for the model."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from local_engine.backend import StepInput
from local_engine.errors import UnhealthyError, WeightsError
from local_engine.request import Request, SamplingParams
from local_engine.scheduler import PauseMode, Scheduler
from local_engine.slots import SlotTable
from longturn.metrics import Metrics

VOCAB_SIZE = 8


class ScriptedBackend:
    """Always predicts token 3; breaks where it is told to."""

    vocab_size = VOCAB_SIZE
    can_rewind = True

    def __init__(self) -> None:
        self.breaks_on_load = False
        self.is_non_finite = False
        self.num_loads = 0
        self.cleared: list[int] = []
        self.copied: list[tuple[int, int, int]] = []
        self.largest_step = 0

    def forward(self, step: StepInput) -> Tensor:
        num_logits = len(step.row_slots) + sum(segment.num_logits for segment in step.segments)
        num_prefill = sum(len(segment.token_ids) for segment in step.segments)
        self.largest_step = max(self.largest_step, num_prefill)
        logits = torch.zeros(num_logits, VOCAB_SIZE)
        logits[:, 3] = float("nan") if self.is_non_finite else 50.0
        return logits

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        self.copied.append((source, target, num_tokens))

    def clear_slot(self, slot: int) -> None:
        self.cleared.append(slot)

    def verify(self, tensors: Mapping[str, Tensor]) -> None:
        if "good" not in tensors:
            raise WeightsError("good is missing")

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.num_loads += 1
        if self.breaks_on_load:
            raise RuntimeError("out of memory")


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def scheduler(backend: ScriptedBackend) -> Scheduler:
    slots = SlotTable(num_slots=4, slot_tokens=400, can_rewind=True)
    return Scheduler(backend, slots, max_running_requests=4, prefill_tokens_per_step=16, codec=None, metrics=Metrics())


def request_for(prompt: list[int], *, max_new_tokens: int = 4) -> Request:
    return Request(
        request_id=f"{prompt[:3]}",
        prompt=np.asarray(prompt, dtype=np.int32),
        params=SamplingParams(max_new_tokens=max_new_tokens),
        stop_ids=frozenset(),
        stream_key=1,
    )


def run_to_end(scheduler: Scheduler) -> list[Request]:
    while scheduler.can_step:
        scheduler.step()
    return scheduler.take_finished()


GOOD = {"good": torch.zeros(1)}


def test_a_broken_copy_leaves_the_engine_unhealthy_until_a_full_load(
    scheduler: Scheduler, backend: ScriptedBackend
) -> None:
    scheduler.submit([request_for([1, 2], max_new_tokens=50), request_for([2, 2])])
    scheduler.step()
    backend.breaks_on_load = True
    with pytest.raises(UnhealthyError, match="half copied"):
        scheduler.load(GOOD, version="1", flush_cache=True)
    scheduler.submit([request_for([4, 4])])
    finished = scheduler.take_finished()
    assert [request.finish.status_code for request in finished if request.finish is not None] == [503, 503, 503]
    assert not scheduler.can_step
    backend.breaks_on_load = False
    scheduler.load(GOOD, version="2", flush_cache=True)
    scheduler.submit([request_for([4, 4])])
    (request,) = run_to_end(scheduler)
    assert request.output_ids == [3, 3, 3, 3]
    assert request.version_starts == [(0, "2")]


def test_weights_that_fail_a_check_are_never_copied(scheduler: Scheduler, backend: ScriptedBackend) -> None:
    with pytest.raises(WeightsError):
        scheduler.load({}, version="1", flush_cache=True)
    assert backend.num_loads == 0
    assert scheduler.is_healthy
    assert scheduler.weight_version == "default"


def test_a_non_finite_logprob_fails_its_request_and_clears_the_slot(
    scheduler: Scheduler, backend: ScriptedBackend
) -> None:
    backend.is_non_finite = True
    scheduler.submit([request_for([1, 2])])
    (request,) = run_to_end(scheduler)
    assert request.finish is not None
    assert request.finish.error_type == "NonFiniteLogprob"
    assert request.output_ids == []
    assert backend.cleared == [0]


def test_prefill_never_exceeds_its_budget_and_decoding_goes_on_beside_it(
    scheduler: Scheduler, backend: ScriptedBackend
) -> None:
    scheduler.submit([request_for([1, 2], max_new_tokens=100)])
    scheduler.step()
    scheduler.submit([request_for([5] * 160), request_for([6] * 160)])
    for _ in range(20):
        scheduler.step()
    assert backend.largest_step == 16
    run = run_to_end(scheduler)
    assert sorted(len(request.output_ids) for request in run) == [4, 4, 100]


def test_group_members_wait_for_their_shared_prompt_and_copy_it(scheduler: Scheduler, backend: ScriptedBackend) -> None:
    scheduler.submit([request_for([7] * 200 + [member]) for member in range(4)])
    finished = run_to_end(scheduler)
    assert [request.num_cached for request in finished] == [0, 200, 200, 200]
    assert len(backend.copied) == 3


def test_a_retracted_request_computes_everything_again_and_keeps_its_tokens(scheduler: Scheduler) -> None:
    request = request_for([1, 2, 3], max_new_tokens=6)
    scheduler.submit([request])
    for _ in range(3):
        scheduler.step()
    scheduler.pause(PauseMode.RETRACT)
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1)
    scheduler.load(GOOD, version="1", flush_cache=True)
    scheduler.resume()
    run_to_end(scheduler)
    assert request.output_ids == [3] * 6
    assert request.num_retractions == 1
    assert request.version_starts == [(0, "default"), (3, "1")]
