"""Requests and replies of `POST /v1/chat/completions`, parsed and made where they cross the wire."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clients.proxy.transcript import Message
from longturn.errors import LongturnError
from longturn.records import FinishReason

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_DECIDED_BY_RUN = ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty")
"""What the learner's rules say; another value is not taken over, and the reply names it."""
_REFUSED = ("tools", "functions", "logit_bias", "response_format", "best_of")
_MAX_STOPS = 4


class ChatRequestError(LongturnError):
    """A request that the proxy cannot serve; reason in OpenAI's manner."""

    reason = "invalid_request_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What an agent asks."""

    model: str
    messages: tuple[Message, ...]
    max_tokens: int | None
    stop_texts: tuple[str, ...]
    is_stream: bool
    wants_logprobs: bool
    overridden: tuple[str, ...]


def parse_request(body: bytes) -> ChatRequest:
    """Read a request; ChatRequestError says what to leave out."""
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise ChatRequestError(f"the body is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ChatRequestError("the body is no JSON object")
    for name in _REFUSED:
        if fields.get(name) not in (None, [], {}, {"type": "text"}):
            raise ChatRequestError(f"{name} is not supported: the policy is asked in plain text; leave it out")
    if fields.get("n") not in (None, 1):
        raise ChatRequestError("n must be 1: every completion is a turn of the episode")
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ChatRequestError("max_tokens must be a whole number from 1")
    return ChatRequest(
        model=str(fields.get("model") or "policy"),
        messages=_messages(fields.get("messages")),
        max_tokens=limit,
        stop_texts=_stops(fields.get("stop")),
        is_stream=bool(fields.get("stream")),
        wants_logprobs=bool(fields.get("logprobs")),
        overridden=tuple(name for name in _DECIDED_BY_RUN if fields.get(name) is not None),
    )


def _messages(value: Any) -> tuple[Message, ...]:  # Any: JSON
    if not isinstance(value, list) or not value:
        raise ChatRequestError("messages must be a list with at least one message")
    messages = tuple(_message(item) for item in value)
    if messages[-1].role == "assistant":
        raise ChatRequestError("the last message is the assistant's; the policy answers a user's message")
    return messages


def _message(value: Any) -> Message:  # Any: JSON
    role = _ROLES.get(str(value.get("role"))) if isinstance(value, dict) else None
    if role is None:
        raise ChatRequestError(f"a message needs one of the roles {', '.join(_ROLES)}")
    content = value.get("content")
    if isinstance(content, list):
        content = "".join(_part(part) for part in content)
    if not isinstance(content, str):
        raise ChatRequestError("the content of a message must be text")
    return Message(role, content.encode("utf-8", "replace").decode("utf-8").strip())


def _part(value: Any) -> str:  # Any: JSON
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ChatRequestError("parts of a message must be text")
    return value["text"]


def _stops(value: Any) -> tuple[str, ...]:  # Any: JSON
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise ChatRequestError(f"stop must be a text or a list of at most {_MAX_STOPS}, none empty")
    return tuple(stops)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """What the policy said."""

    completion_id: str
    text: str
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: Sequence[tuple[str, float]]
    """Text and logprob of every sampled token."""

    def to_json(self, request: ChatRequest) -> dict[str, object]:
        """A whole reply."""
        choice = {"index": 0, "message": {"role": "assistant", "content": self.text}, **self._end(request)}
        return {"object": "chat.completion", **self._frame(request), "choices": [choice], "usage": self._usage()}

    def to_events(self, request: ChatRequest) -> list[bytes]:
        """The reply as a stream of one piece."""
        frame = {"object": "chat.completion.chunk", **self._frame(request)}
        pieces: list[Mapping[str, object]] = [
            {"index": 0, "delta": {"role": "assistant", "content": self.text}, "finish_reason": None},
            {"index": 0, "delta": {}, **self._end(request)},
        ]
        chunks = [{**frame, "choices": [piece]} for piece in pieces]
        chunks.append({**frame, "choices": [], "usage": self._usage()})
        return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]

    def _end(self, request: ChatRequest) -> dict[str, object]:
        reason = "length" if self.finish_reason is FinishReason.LENGTH else "stop"
        content = [{"token": text, "logprob": value, "top_logprobs": []} for text, value in self.logprobs]
        return {"finish_reason": reason, "logprobs": {"content": content} if request.wants_logprobs else None}

    def _frame(self, request: ChatRequest) -> dict[str, object]:
        return {
            "id": self.completion_id,
            "created": int(time.time()),
            "model": request.model,
            "longturn": {"decided_by_run": list(request.overridden)},
        }

    def _usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": len(self.logprobs),
            "total_tokens": self.num_prompt_tokens + len(self.logprobs),
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
