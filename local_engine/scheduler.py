"""Continuous batching: which tokens go into the next forward pass, and what becomes of the results.

Invariant: one thread owns a Scheduler and everything below it. Between two steps every running request has its
computed tokens in its own slot and at least one token to compute; control (pause, load, flush, abort) happens only
between steps, so one step sees one set of weights.
"""

import enum
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from local_engine.admission import Admission
from local_engine.backend import Backend, Segment, StepInput
from local_engine.errors import UnhealthyError, WeightsError
from local_engine.request import ABORTED, ABORTED_WAITING, UNHEALTHY, FinishReason, Request
from local_engine.sampling import Draws, draw, scaled_logprobs, top_alternatives, uniforms
from local_engine.scoring import record_input_logprobs, segment_logits
from local_engine.slots import SlotTable
from local_engine.text import TextCodec
from longturn.metrics import Metrics


class PauseMode(enum.StrEnum):
    """What happens to running requests at a pause (SGLang's modes)."""

    ABORT = "abort"
    RETRACT = "retract"
    IN_PLACE = "in_place"


class Scheduler:
    """Runs requests on a backend, one step at a time."""

    def __init__(
        self,
        backend: Backend,
        slots: SlotTable,
        *,
        max_running_requests: int,
        prefill_tokens_per_step: int,
        codec: TextCodec | None,
        metrics: Metrics,
        weight_version: str = "default",
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._admission = Admission(backend, slots)
        self._max_running = max_running_requests
        self._prefill_budget = prefill_tokens_per_step
        self._codec = codec
        self._metrics = metrics
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._finished: list[Request] = []
        self.weight_version = weight_version
        self.is_paused = False
        self.is_healthy = True

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def slots(self) -> SlotTable:
        return self._slots

    @property
    def can_step(self) -> bool:
        """Whether `step` would do anything now."""
        return self.is_healthy and not self.is_paused and bool(self._running or self._waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in order; an unhealthy engine ends them at once."""
        if self.is_healthy:
            self._waiting.extend(requests)
            return
        for request in requests:
            self._finish(request, UNHEALTHY)

    def take_finished(self) -> list[Request]:
        """Requests that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def abort(self, matches: Callable[[Request], bool], reason: FinishReason = ABORTED) -> None:
        """End every matching request with what it has."""
        for request in [request for request in self._running if matches(request)]:
            self._finish(request, reason)
        for request in [request for request in self._waiting if matches(request)]:
            self._waiting.remove(request)
            self._finish(request, ABORTED_WAITING if reason is ABORTED and not request.output_ids else reason)

    def pause(self, mode: PauseMode) -> None:
        """Stop stepping until `resume`. Pausing again is allowed and applies the new mode to what still runs."""
        self.is_paused = True
        if mode is PauseMode.ABORT:
            self.abort(lambda _: True)
        elif mode is PauseMode.RETRACT:
            self._retract_running()

    def resume(self) -> None:
        """Step again; does nothing if not paused."""
        self.is_paused = False

    def flush(self) -> bool:
        """Forget every computed prefix; False (and nothing done) while requests run or wait."""
        if self._running or (self._waiting and not self.is_paused):
            return False
        self._slots.forget_idle()
        return True

    def load(self, tensors: Mapping[str, Tensor], *, version: str | None, flush_cache: bool) -> int:
        """Replace all weights at once; return how many running requests were carried over.

        With `flush_cache` running requests are computed again under the new weights, except in an in-place pause,
        where that is refused. Without it they keep their keys and values. Raises `WeightsError` with nothing changed,
        or `UnhealthyError` when the copy itself broke off: then only another full load brings the engine back.
        """
        self._backend.verify(tensors)
        num_carried = len(self._running)
        if flush_cache and self.is_paused and self._running:
            raise WeightsError(
                f"the cache cannot be flushed while {num_carried} requests are frozen by an in_place pause; "
                "send flush_cache false, or pause with mode retract"
            )
        self.is_healthy = False
        try:
            self._backend.load(tensors)
        except RuntimeError as error:  # torch raises it for a failed copy: the weights are a mixture now
            self.abort(lambda _: True, UNHEALTHY)
            self._slots.forget_idle()
            raise UnhealthyError(f"weights are half copied ({error}); load a whole version again") from error
        self.is_healthy = True
        self.weight_version = self.weight_version if version is None else version
        if flush_cache:
            self._retract_running()
            self._slots.forget_idle()
        return num_carried

    def step(self) -> None:
        """Admit, run one forward pass, sample one token for every request that is ready for one."""
        started_s = time.perf_counter()
        self._admission.admit(self._waiting, self._running, max_running=self._max_running)
        rows = [request for request in self._running if is_row(request)]
        chunks = self._plan_chunks() if len(rows) < len(self._running) else []
        rows.sort(key=lambda request: request.slot)
        positions = [request.num_computed for request in rows]
        slots = [request.slot for request in rows]
        tokens = [request.last_token for request in rows]
        segments = [segment for _, segment in chunks]
        logits = self._backend.forward(
            StepInput(row_slots=slots, row_positions=positions, row_tokens=tokens, segments=segments)
        )
        self._record_computed(rows, slots, positions, tokens, chunks)
        record_input_logprobs(logits[len(rows) :], chunks)
        ready = rows + [request for request, _ in chunks if request.num_pending == 0]
        if ready:
            self._sample(ready, segment_logits(logits, len(rows), chunks))
        self._count_step(len(rows), segments, time.perf_counter() - started_s)

    def _plan_chunks(self) -> list[tuple[Request, Segment]]:
        """Prompt chunks of this step, oldest request first, at most the budget in tokens."""
        budget = self._prefill_budget
        chunks: list[tuple[Request, Segment]] = []
        for request in self._running:
            if budget == 0:
                break
            if is_row(request):
                continue
            start = request.num_computed
            end = min(request.num_tokens, start + budget)
            budget -= end - start
            num_logits = int(end == request.num_tokens)
            if request.wants_input_logprobs and request.input_logprobs_from is not None:
                num_logits = max(0, end - max(start, request.input_logprobs_from))
            segment = Segment(
                slot=request.slot, start=start, token_ids=request.tokens_between(start, end), num_logits=num_logits
            )
            chunks.append((request, segment))
        return chunks

    def _record_computed(
        self,
        rows: Sequence[Request],
        slots: Sequence[int],
        positions: Sequence[int],
        tokens: Sequence[int],
        chunks: Iterable[tuple[Request, Segment]],
    ) -> None:
        if rows:
            self._slots.extend_rows(slots, positions, tokens)
        for request in rows:
            request.num_computed += 1
        for request, segment in chunks:
            self._slots.extend(segment.slot, segment.start, segment.token_ids)
            request.num_computed += len(segment.token_ids)

    def _sample(self, ready: Sequence[Request], logits_RV: Tensor) -> None:
        """Draw one token per ready request and end those that are done."""
        forbid_early_stops(ready, logits_RV)
        temperatures = [request.params.temperature for request in ready]
        keys = [request.stream_key for request in ready]
        positions = [request.num_tokens for request in ready]
        logprobs_RV = scaled_logprobs(logits_RV, temperatures)
        draws = draw(logprobs_RV, temperatures, uniforms(keys, positions))
        for row, request in enumerate(ready):
            if request.num_top_logprobs:
                request.output_top.append(top_alternatives(logprobs_RV[row], request.num_top_logprobs))
        self._append_draws(ready, draws)

    def _append_draws(self, ready: Sequence[Request], draws: Draws) -> None:
        for request, token_id, logprob in zip(ready, draws.token_ids, draws.logprobs, strict=True):
            if request.params.max_new_tokens == 0:  # scoring only
                self._finish(request, FinishReason(length=0))
                continue
            if not math.isfinite(logprob):
                self._fail_non_finite(request)
                continue
            request.append(token_id, logprob, self.weight_version)
            reason = finish_reason(request, self._codec)
            if reason is not None:
                self._finish(request, reason)

    def _fail_non_finite(self, request: Request) -> None:
        slot = request.slot
        reason = FinishReason(
            abort_message="the model gave a logprob that is not finite",
            status_code=500,
            error_type="NonFiniteLogprob",
        )
        self._finish(request, reason)
        self._slots.forget(slot)
        self._backend.clear_slot(slot)
        self._metrics.count("engine/request/non_finite")

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.slot >= 0:
            self._running.remove(request)
            self._slots.release(request.slot)
        request.end(reason, self.weight_version)
        self._finished.append(request)

    def _retract_running(self) -> None:
        for request in reversed(self._running):
            self._slots.forget(request.slot)
            request.retract()
            self._waiting.appendleft(request)
        self._running.clear()

    def _count_step(self, num_rows: int, segments: Sequence[Segment], elapsed_s: float) -> None:
        phase = "mixed" if num_rows and segments else "prefill" if segments else "decode"
        self._metrics.count(f"engine/{phase}/busy_s", elapsed_s)
        self._metrics.count(f"engine/{phase}/steps")
        if segments:
            self._metrics.count("engine/prefill/tokens", sum(len(segment.token_ids) for segment in segments))
        if num_rows:
            self._metrics.count("engine/decode/tokens", num_rows)


def is_row(request: Request) -> bool:
    """Whether a request goes through the single-token path: one token to compute and no prompt logprobs wanted."""
    return request.num_pending == 1 and not request.wants_input_logprobs


def finish_reason(request: Request, codec: TextCodec | None) -> FinishReason | None:
    """Why the newest token ends the request, in SGLang's order: length, then stop token, then stop string."""
    params = request.params
    num_output = len(request.output_ids)
    if num_output >= params.max_new_tokens:
        return FinishReason(length=params.max_new_tokens)
    if request.output_ids[-1] in request.stop_ids:
        return FinishReason(matched=request.output_ids[-1])
    if params.stop and codec is not None:
        matched = codec.matched_stop(request.output_ids, params)
        return None if matched is None else FinishReason(matched=matched)
    return None


@torch.inference_mode()
def forbid_early_stops(ready: Sequence[Request], logits_RV: Tensor) -> None:
    """Take away the stop tokens of requests that have not yet reached `min_new_tokens`."""
    for row, request in enumerate(ready):
        if len(request.output_ids) < request.params.min_new_tokens and request.stop_ids:
            logits_RV[row, list(request.stop_ids)] = -torch.inf
