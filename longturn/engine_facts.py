"""What an engine says of itself at `GET /server_info`, and what follows from it.

Those who drive an engine ask here what it can do; nobody else compares releases.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from longturn.json_text import parse_json
from longturn.records import LogprobConvention

PATH = "/server_info"
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_CONVENTIONS = {
    "after temperature": LogprobConvention.AFTER_TEMPERATURE,
    "before temperature": LogprobConvention.BEFORE_TEMPERATURE,
}

Release = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Name, version and abilities of one engine."""

    name: str
    version: str
    dialect: Release | None
    """The release of SGLang whose fields and meanings it has; None if it does not say."""
    logprob_convention: LogprobConvention | None = None
    """What its logprobs mean; None if it does not say, as SGLang does not."""
    num_ranks: int = 1
    """Processes that share its weights (tensor parallelism)."""

    @property
    def has_version_spans(self) -> bool:
        """Whether a reply tells which tokens came from which weights; else it names one version per request."""
        return self._is_since((0, 5, 19))

    @property
    def has_pause_modes(self) -> bool:
        """Whether running requests can be frozen or retracted; else a pause aborts them."""
        return self._is_since((0, 5, 6))

    @property
    def brackets_updates(self) -> bool:
        """Whether weights that are sent, not read from a disk, come between begin and end calls."""
        return self._is_since((0, 5, 21))

    @property
    def has_cache_salt(self) -> bool:
        """Whether a request can name who shares its cached prefixes."""
        return self._is_since((0, 5, 18))

    def _is_since(self, release: Release) -> bool:
        return self.dialect is not None and self.dialect >= release


def read_server_info(body: bytes) -> EngineFacts:
    """Parse the answer; ValueError if it is no JSON object."""
    fields = parse_json(body)
    if not isinstance(fields, dict):
        raise ValueError(f"{PATH} is no JSON object: {body[:100]!r}")
    version = str(fields.get("version") or "")
    # SGLang does not give its name; the field is its own.
    is_sglang = "engine" not in fields and "internal_states" in fields
    return EngineFacts(
        name="sglang" if is_sglang else str(fields.get("engine") or ""),
        version=version,
        dialect=_release(version if is_sglang else str(fields.get("sglang_dialect") or "")),
        logprob_convention=_CONVENTIONS.get(str(fields.get("logprobs"))),
        num_ranks=int(fields.get("tp_size") or 1),
    )


def _release(text: str) -> Release | None:
    match = _RELEASE.match(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))
