"""One generation request: what was asked, how far it is, what came out."""

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. Names and defaults are SGLang's."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    """Ignores `stop_token_ids` too, as SGLang does."""
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    sampling_seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReason:
    """Why a request ended: exactly one of stop (a token id or a string), length, or abort."""

    matched: int | str | None = None
    length: int | None = None
    abort_message: str | None = None
    status_code: int | None = None
    error_type: str | None = None


ABORTED = FinishReason(abort_message="Aborted")
ABORTED_WAITING = FinishReason(abort_message="Abort in waiting queue")
UNHEALTHY = FinishReason(
    abort_message="the engine is unhealthy: a weight load broke off", status_code=503, error_type="Unhealthy"
)


class RequestStatus(enum.Enum):
    """Where a request is. WAITING and RUNNING alternate under retraction; FINISHED is final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


Alternatives = list[tuple[float, int]]


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """State of one sample. Owned by the compute thread from submission until it is finished."""

    request_id: str
    prompt: NDArray[np.int32]
    params: SamplingParams
    stop_ids: frozenset[int]
    """Token ids that end it, end-of-text included."""
    stream_key: int
    """Key of its random stream (sampling.py)."""
    namespace: str = ""
    """Only requests of one namespace share computed prefixes (`cache_salt`, `extra_key`)."""
    return_logprob: bool = False
    """Whether the reply lists logprobs; they are computed either way."""
    input_logprobs_from: int | None = None
    """First prompt position whose logprobs are wanted; None for output logprobs only."""
    num_top_logprobs: int = 0

    status: RequestStatus = RequestStatus.WAITING
    slot: int = -1
    num_computed: int = 0
    """Leading tokens of prompt + output whose keys and values are in the slot."""
    num_cached: int | None = None
    """Prompt tokens taken from the cache at first admission."""
    num_retractions: int = 0
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[Alternatives] = field(default_factory=list)
    input_logprobs: list[float] = field(default_factory=list)
    """Of prompt tokens after position `input_logprobs_from`."""
    input_top: list[Alternatives] = field(default_factory=list)
    version_starts: list[tuple[int, str]] = field(default_factory=list)
    """(first output index, weight version), ascending."""
    finished_version: str = ""
    """Version of the weights when it ended."""
    finish: FinishReason | None = None
    created_s: float = field(default_factory=time.monotonic)

    num_tokens: int = field(init=False)
    """Prompt and output together."""

    def __post_init__(self) -> None:
        self.num_tokens = len(self.prompt) + len(self.output_ids)

    @property
    def num_pending(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return self.num_tokens - self.num_computed

    @property
    def last_token(self) -> int:
        """The newest token."""
        return self.output_ids[-1] if self.output_ids else int(self.prompt[-1])

    @property
    def wants_input_logprobs(self) -> bool:
        """Whether prompt logprobs are still missing."""
        if self.input_logprobs_from is None:
            return False
        return len(self.input_logprobs) < len(self.prompt) - self.input_logprobs_from - 1

    @property
    def max_reused(self) -> int:
        """How many leading tokens may come from the cache: at least one must be computed to sample from."""
        limit = self.num_tokens - 1
        if self.wants_input_logprobs and self.input_logprobs_from is not None:
            return min(limit, self.input_logprobs_from)
        return limit

    def all_tokens(self) -> NDArray[np.int32]:
        """Prompt and output as one array."""
        if not self.output_ids:
            return self.prompt
        return np.concatenate((self.prompt, np.asarray(self.output_ids, dtype=np.int32)))

    def tokens_between(self, start: int, end: int) -> Sequence[int]:
        """Tokens of prompt + output at positions start..end (exclusive)."""
        size = len(self.prompt)
        if end <= size:
            return self.prompt[start:end].tolist()
        return self.prompt[start:].tolist() + self.output_ids[max(0, start - size) : end - size]

    def append(self, token_id: int, logprob: float, version: str) -> None:
        """Add a sampled token; it belongs to the weights that computed its logits."""
        if not self.version_starts or self.version_starts[-1][1] != version:
            self.version_starts.append((len(self.output_ids), version))
        self.output_ids.append(token_id)
        self.num_tokens += 1
        self.output_logprobs.append(logprob)

    def admit(self, slot: int, num_reused: int) -> None:
        """Start running in `slot` with `num_reused` tokens already computed."""
        self._leave(RequestStatus.WAITING)
        self.status = RequestStatus.RUNNING
        self.slot, self.num_computed = slot, num_reused
        if self.num_cached is None:
            self.num_cached = num_reused

    def retract(self) -> None:
        """Go back to the waiting queue; everything computed must be computed again."""
        self._leave(RequestStatus.RUNNING)
        self.status = RequestStatus.WAITING
        self.slot, self.num_computed = -1, 0
        self.num_retractions += 1
        if self.wants_input_logprobs:
            self.input_logprobs.clear()
            self.input_top.clear()

    def end(self, reason: FinishReason, version: str) -> None:
        """Finish for good, under the weights named `version`."""
        if self.status is RequestStatus.FINISHED:
            raise RuntimeError(f"request {self.request_id} ended twice")
        self.status, self.finish, self.finished_version = RequestStatus.FINISHED, reason, version

    def _leave(self, expected: RequestStatus) -> None:
        if self.status is not expected:
            raise RuntimeError(f"request {self.request_id} is {self.status.value}, not {expected.value}")
