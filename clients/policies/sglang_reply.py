"""One reply of `POST /generate`, parsed where it arrives (SGLang 0.5.23's field names and meanings).

Ids and logprobs come from `output_token_logprobs` only, versions from `weight_versions`, or `weight_version` where the
engine gives no spans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from longturn.errors import PolicyError
from longturn.json_text import parse_json
from longturn.records import FinishReason, PolicySpan, is_logprob

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens of one request."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_spans: tuple[PolicySpan, ...]
    is_versioned: bool
    """False if some token comes from weights without a number; its version then reads 0."""
    finish_reason: FinishReason
    cached_tokens: int
    abort_status: int | None = None
    abort_message: str = ""

    @property
    def versions(self) -> frozenset[int]:
        """Versions that sampled its tokens."""
        return frozenset(span.policy_version for span in self.policy_spans)


def segment_from_reply(body: bytes, *, who: str) -> Segment:
    """Parse a reply; raise PolicyError(BAD_REPLY or BAD_LOGPROBS) naming `who` if it breaks the dialect's promises."""
    try:
        reply = parse_json(body)
        return _segment(reply["meta_info"], who)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PolicyError(f"{who}: the engine's reply is malformed: {error!r}", reason="BAD_REPLY") from error


def _segment(meta: dict[str, Any], who: str) -> Segment:  # Any: JSON
    pairs = meta.get("output_token_logprobs") or ()
    token_ids = tuple(int(pair[1]) for pair in pairs)
    logprobs = tuple(math.nan if pair[0] is None else float(pair[0]) for pair in pairs)
    if not all(map(is_logprob, logprobs)):
        raise PolicyError(f"{who}: a logprob of the engine is positive or not finite", reason="BAD_LOGPROBS")
    finish = meta.get("finish_reason") or {}
    finish_reason = _FINISH_REASONS[finish["type"]]
    num_tokens = meta.get("completion_tokens")
    if num_tokens is not None and num_tokens != len(token_ids) and finish_reason is not FinishReason.ABORT:
        raise ValueError(f"{len(token_ids)} logprobs for {num_tokens} completion tokens; ask with return_logprob")
    spans, is_versioned = _spans(meta, len(token_ids))
    return Segment(
        token_ids=token_ids,
        logprobs=logprobs,
        policy_spans=spans,
        is_versioned=is_versioned,
        finish_reason=finish_reason,
        cached_tokens=int(meta.get("cached_tokens") or 0),
        abort_status=finish.get("status_code"),
        abort_message=str(finish.get("message") or ""),
    )


def _spans(meta: dict[str, Any], num_tokens: int) -> tuple[tuple[PolicySpan, ...], bool]:
    if num_tokens == 0:
        return (), True
    whole: list[dict[str, Any]] = [{"version": meta.get("weight_version"), "start": 0, "end": num_tokens}]
    listed: list[dict[str, Any]] = meta.get("weight_versions") or whole
    all_named = [(str(item["version"]), int(item["start"]), int(item["end"])) for item in listed]
    named = [(name, start, end) for name, start, end in all_named if end > start]
    spans = tuple(
        PolicySpan(start=start, end=end, policy_version=int(name) if name.isdecimal() else 0)
        for name, start, end in named
    )
    edges = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != edges[:-1] or edges[-1] != num_tokens:
        raise ValueError(f"weight_versions do not cover {num_tokens} tokens: {named}")
    return spans, all(name.isdecimal() for name, _, _ in named)


def merge_spans(spans: tuple[PolicySpan, ...], later: tuple[PolicySpan, ...], offset: int) -> tuple[PolicySpan, ...]:
    """Spans of two segments as one list; `later` starts `offset` tokens after the first."""
    merged = list(spans)
    for span in later:
        start, end = span.start + offset, span.end + offset
        if merged and merged[-1].policy_version == span.policy_version and merged[-1].end == start:
            start = merged.pop().start
        merged.append(PolicySpan(start=start, end=end, policy_version=span.policy_version))
    return tuple(merged)
