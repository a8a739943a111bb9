"""JSON of `POST /generate` in SGLang 0.5.23's words: bodies become requests, finished requests become replies."""

import itertools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # bodies are free-form JSON: every value is checked here, once

import numpy as np
from numpy.typing import NDArray

from local_engine.errors import BadRequestError
from local_engine.request import Alternatives, FinishReason, Request, SamplingParams
from local_engine.sampling import stream_key
from local_engine.sampling_params import sampling_params
from local_engine.text import TextCodec

FIELDS = frozenset(
    {
        "input_ids",
        "text",
        "sampling_params",
        "rid",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "stream",
        "cache_salt",
        "extra_key",
    }
)
# Known to SGLang, without effect on what is computed.
IGNORED_FIELDS = frozenset(
    {"log_metrics", "no_logs", "priority", "routing_key", "session_id", "custom_labels", "return_text_in_logprobs"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a request must fit."""

    vocab_size: int
    context_tokens: int
    eos_token_ids: frozenset[int]


class Dialect:
    """Parses bodies and writes replies for one model."""

    def __init__(self, limits: ModelLimits, *, codec: TextCodec | None, sampling_seed: int | None) -> None:
        self._limits = limits
        self._codec = codec
        self._next_seed: Callable[[], int] = lambda: secrets.randbits(48)
        if sampling_seed is not None:
            self._next_seed = itertools.count(sampling_seed).__next__

    def parse(self, body: object) -> tuple[list[Request], bool]:
        """Requests of a body, and whether the reply is a list; raise `BadRequestError` naming the field at fault."""
        fields = checked_fields(body)
        prompts, is_batch = self._prompts(fields)
        params = self._params(fields.get("sampling_params"), len(prompts))
        ids = request_ids(fields.get("rid"), len(prompts))
        requests = [
            self._request(fields, prompt, one, request_id if one.n == 1 else f"{request_id}_{index}", index)
            for prompt, one, request_id in zip(prompts, params, ids, strict=True)
            for index in range(one.n)
        ]
        return requests, is_batch or len(requests) > 1

    def reply(self, request: Request) -> dict[str, Any]:
        """One finished request."""
        reply: dict[str, Any] = {"output_ids": request.output_ids, "meta_info": meta_info(request)}
        if self._codec is not None:
            reply["text"] = self._text(request, self._codec)
        return reply

    def _text(self, request: Request, codec: TextCodec) -> str:
        ids = request.output_ids
        is_stopped = request.finish is not None and isinstance(request.finish.matched, int)
        if is_stopped and not request.params.no_stop_trim:
            ids = ids[:-1]
        return codec.decode(ids, request.params)

    def _prompts(self, fields: Mapping[str, Any]) -> tuple[list[NDArray[np.int32]], bool]:
        ids, text = fields.get("input_ids"), fields.get("text")
        if (ids is None) == (text is None):
            raise BadRequestError("give exactly one of input_ids and text")
        if text is not None:
            ids = self._encoded(text)
        if not isinstance(ids, list) or not ids:
            raise BadRequestError("input_ids must be a list of token ids, or a list of such lists, and not empty")
        is_batch = isinstance(ids[0], list)
        return [self._prompt(one) for one in (ids if is_batch else [ids])], is_batch

    def _encoded(self, text: object) -> list[Any]:
        if self._codec is None:
            raise BadRequestError("text needs a tokenizer; this engine runs with engine.skip_tokenizer_init")
        if isinstance(text, str):
            return self._codec.encode(text)
        if isinstance(text, list) and all(isinstance(one, str) for one in text):
            return [self._codec.encode(one) for one in text]
        raise BadRequestError("text must be a string or a list of strings")

    def _prompt(self, ids: object) -> NDArray[np.int32]:
        try:
            prompt = np.asarray(ids)
        except ValueError as error:
            raise BadRequestError("input_ids must hold integers") from error
        if prompt.ndim != 1 or prompt.size == 0 or prompt.dtype.kind != "i":
            raise BadRequestError("input_ids must hold integers, at least one")
        if prompt.min() < 0 or prompt.max() >= self._limits.vocab_size:
            raise BadRequestError(f"input_ids must lie in 0..{self._limits.vocab_size - 1}, the model's vocabulary")
        if prompt.size >= self._limits.context_tokens:
            raise BadRequestError(
                f"The input ({prompt.size} tokens) is longer than the model's context length "
                f"({self._limits.context_tokens} tokens); shorten it or raise engine.context_tokens"
            )
        return prompt.astype(np.int32)

    def _params(self, value: object, num_prompts: int) -> list[SamplingParams]:
        if isinstance(value, list):
            if len(value) != num_prompts:
                raise BadRequestError(f"{len(value)} sampling_params for {num_prompts} prompts")
            return [sampling_params(one) for one in value]
        return [sampling_params({} if value is None else value)] * num_prompts

    def _request(
        self, fields: Mapping[str, Any], prompt: NDArray[np.int32], params: SamplingParams, request_id: str, index: int
    ) -> Request:
        limits = self._limits
        if prompt.size + params.max_new_tokens > limits.context_tokens:
            raise BadRequestError(
                f"Requested token count exceeds the model's maximum context length of {limits.context_tokens} tokens. "
                f"You requested a total of {prompt.size + params.max_new_tokens} tokens: {prompt.size} tokens from the "
                f"input and {params.max_new_tokens} tokens for the completion"
            )
        if params.stop and self._codec is None:
            raise BadRequestError("stop strings need a tokenizer; use stop_token_ids")
        stop_ids = frozenset() if params.ignore_eos else params.stop_token_ids | limits.eos_token_ids
        seed = self._next_seed() if params.sampling_seed is None else params.sampling_seed
        return Request(
            request_id=request_id,
            prompt=prompt,
            params=params,
            stop_ids=frozenset(token_id for token_id in stop_ids if 0 <= token_id < limits.vocab_size),
            stream_key=stream_key(seed, index),
            namespace=f"{fields.get('cache_salt') or ''}\0{fields.get('extra_key') or ''}",
            return_logprob=bool(fields.get("return_logprob")),
            input_logprobs_from=input_logprobs_from(fields, prompt.size),
            num_top_logprobs=num_top_logprobs(fields),
        )


def checked_fields(body: object) -> Mapping[str, Any]:
    """The body as a mapping, without fields that this engine would silently ignore."""
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    for name, value in body.items():
        if name not in FIELDS | IGNORED_FIELDS and value not in (None, False, [], -1):
            raise BadRequestError(f"field {name} is unknown or not done here; allowed: {', '.join(sorted(FIELDS))}")
    if body.get("stream"):
        raise BadRequestError("stream is not done here; leave it false")
    return body


def request_ids(rid: object, num_prompts: int) -> list[str]:
    """One id per prompt: given, expanded from a prefix, or random."""
    if rid is None:
        return [secrets.token_hex(16) for _ in range(num_prompts)]
    if isinstance(rid, str):
        return [rid] if num_prompts == 1 else [f"{rid}_{index}" for index in range(num_prompts)]
    if isinstance(rid, list) and len(rid) == num_prompts and all(isinstance(one, str) for one in rid):
        return [str(one) for one in rid]
    raise BadRequestError("rid must be a string, or a list with one string per prompt")


def input_logprobs_from(fields: Mapping[str, Any], num_prompt: int) -> int | None:
    """First prompt position to score; None for output logprobs only."""
    start = fields.get("logprob_start_len", -1)
    if not fields.get("return_logprob") or start is None or start == -1:
        return None
    if not isinstance(start, int) or not 0 <= start < num_prompt:
        raise BadRequestError(f"logprob_start_len must be -1 or lie in 0..{num_prompt - 1}, got {start}")
    return start


def num_top_logprobs(fields: Mapping[str, Any]) -> int:
    """How many alternatives to report per token."""
    num = fields.get("top_logprobs_num") or 0
    if not isinstance(num, int) or num < 0:
        raise BadRequestError(f"top_logprobs_num must be a whole number, got {num!r}")
    return num if fields.get("return_logprob") else 0


def meta_info(request: Request) -> dict[str, Any]:
    """Everything about a finished request but its text."""
    num_output = len(request.output_ids)
    info: dict[str, Any] = {
        "id": request.request_id,
        "finish_reason": finish_json(request.finish),
        "prompt_tokens": len(request.prompt),
        "completion_tokens": num_output,
        "cached_tokens": request.num_cached or 0,
        "weight_version": request.version_starts[-1][1] if request.version_starts else request.finished_version,
        "weight_versions": version_spans(request.version_starts, num_output),
        "num_retractions": request.num_retractions,
        "e2e_latency": time.monotonic() - request.created_s,
    }
    return info | logprob_info(request) if request.return_logprob else info


def logprob_info(request: Request) -> dict[str, Any]:
    """Logprobs as SGLang's [logprob, token id, text] triples; the first prompt token has none."""
    outputs = zip(request.output_logprobs, request.output_ids, strict=True)
    info: dict[str, Any] = {
        "output_token_logprobs": [(logprob, token_id, None) for logprob, token_id in outputs],
        "output_token_logprobs_length": len(request.output_ids),
    }
    if request.input_logprobs_from is not None:
        scored = request.prompt[request.input_logprobs_from :].tolist()
        logprobs = [None, *request.input_logprobs]
        info["input_token_logprobs"] = [
            (logprob, token_id, None) for logprob, token_id in zip(logprobs, scored, strict=False)
        ]
    if request.num_top_logprobs:
        info["output_top_logprobs"] = [top_json(top) for top in request.output_top]
        if request.input_logprobs_from is not None:
            info["input_top_logprobs"] = [None, *(top_json(top) for top in request.input_top)]
    return info


def top_json(alternatives: Alternatives) -> list[tuple[float, int, None]]:
    """Alternatives in SGLang's triples."""
    return [(logprob, token_id, None) for logprob, token_id in alternatives]


def version_spans(starts: Sequence[tuple[int, str]], num_output: int) -> list[dict[str, Any]]:
    """Spans that cover the output without gap or overlap."""
    ends = [start for start, _ in starts[1:]] + [num_output]
    return [
        {"version": version, "start": start, "end": end}
        for (start, version), end in zip(starts, ends, strict=bool(starts))
    ]


def finish_json(reason: FinishReason | None) -> dict[str, Any] | None:
    """A finish reason in SGLang's shape."""
    if reason is None:
        return None
    if reason.abort_message is not None:
        return {
            "type": "abort",
            "message": reason.abort_message,
            "status_code": reason.status_code,
            "err_type": reason.error_type,
        }
    if reason.length is not None:
        return {"type": "length", "length": reason.length}
    return {"type": "stop", "matched": reason.matched}
