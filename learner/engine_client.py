"""The control calls of one engine, in SGLang's dialect. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from longturn.engine_facts import PATH, EngineFacts, read_server_info
from longturn.engine_http import NO_ANSWER, exchange
from longturn.errors import LongturnError
from longturn.json_text import parse_json


class EngineError(LongturnError):
    """An engine did not do what it was asked; the message is its own."""

    reason = "ENGINE_ERROR"


class EngineLostError(EngineError):
    """An engine cannot be reached, or broke off in the middle of an answer."""

    reason = "ENGINE_LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The weights that all engines shall hold."""

    policy_version: int
    training_step: int
    folder: Path
    cache_salt: str = ""
    """What pools send with each request, so that no prefix is shared across versions; empty: nothing."""


class Transport(Protocol):
    """Brings weights from a folder into an engine that is paused."""

    def check(self, engine: EngineClient, facts: EngineFacts) -> None:
        """EngineError if the engine cannot take weights this way."""
        ...

    def send(
        self, engine: EngineClient, facts: EngineFacts, target: Target, *, flush_cache: bool, timeout_s: float
    ) -> None:
        """Return once the engine says that it holds the weights; EngineError if it does not."""
        ...


class DiskTransport:
    """The engine reads the folder itself: it must see the learner's disk."""

    def check(self, engine: EngineClient, facts: EngineFacts) -> None:
        """Every engine can."""

    def send(
        self, engine: EngineClient, facts: EngineFacts, target: Target, *, flush_cache: bool, timeout_s: float
    ) -> None:
        """One call."""
        body = {
            "model_path": str(target.folder),
            "weight_version": str(target.policy_version),
            "flush_cache": flush_cache,
        }
        engine.demand("/update_weights_from_disk", body, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRules:
    """How an engine is brought to new weights."""

    pause_mode: str
    flush_cache: bool
    timeout_s: float
    """Of each call."""
    transport: Transport


class EngineClient:
    """Calls one engine."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key

    def weight_version(self, *, timeout_s: float) -> str:
        """What the engine says it holds; EngineError if it does not answer."""
        return str(self.call("/model_info", None, timeout_s=timeout_s).get("weight_version"))

    def facts(self, *, timeout_s: float) -> EngineFacts:
        """What the engine says it can do; EngineError if it does not."""
        body = self._body(PATH, None, timeout_s)
        try:
            return read_server_info(body)
        except ValueError as error:
            raise EngineError(f"{self.url}: {error}") from error

    def checksums(self, *, timeout_s: float) -> dict[str, str]:
        """A digest of every tensor that an SGLang engine of one rank holds, under the engine's own (fused) names."""
        ranks = self.demand("/weights_checker", {"action": "checksum"}, timeout_s=timeout_s)["ranks"]
        if len(ranks) != 1:
            raise EngineError(f"{self.url}: {len(ranks)} ranks hold parts of the weights; their digests do not compare")
        return dict(ranks[0]["checksums"])

    def load(self, target: Target, rules: UpdateRules) -> None:
        """Pause, load, continue; EngineError unless the engine then confirms the version. Always continues."""
        # Asked every time: what answers at the address may be another release than last time.
        facts = self.facts(timeout_s=rules.timeout_s)
        self._check(facts, target, rules)
        self.call("/pause_generation", {"mode": rules.pause_mode}, timeout_s=rules.timeout_s)
        try:
            rules.transport.send(self, facts, target, flush_cache=rules.flush_cache, timeout_s=rules.timeout_s)
        finally:
            # An engine that was paused and failed to load must not hold its requests for ever; it is out of rotation,
            # and what it answers now carries a version that no pool takes for a newer one.
            self.call("/continue_generation", {}, timeout_s=rules.timeout_s)
        found = self.weight_version(timeout_s=rules.timeout_s)
        if found != str(target.policy_version):
            raise EngineError(f"{self.url} reports version {found} after loading {target.policy_version}")

    def _check(self, facts: EngineFacts, target: Target, rules: UpdateRules) -> None:
        """Refuse what this engine would do without saying so."""
        release = f"{self.url} ({facts.name or 'an engine without a name'} {facts.version})"
        if facts.dialect is None:
            raise EngineError(
                f"{release} does not say which release of SGLang it speaks like; use SGLang >= 0.5.6 or `longturn"
                " engine`"
            )
        if not facts.has_pause_modes:
            raise EngineError(f"{release} cannot pause by mode; use SGLang >= 0.5.6")
        if rules.pause_mode != "abort" and not facts.has_version_spans:
            raise EngineError(
                f"{release} reports one version per request, so a turn that an update meets would be recorded wrongly: "
                "set learner.publish.pause_mode = abort, or use SGLang >= 0.5.19"
            )
        if target.cache_salt and not facts.has_cache_salt:
            raise EngineError(f"{release} has no cache_salt; set learner.publish.cache_rule = flush")
        rules.transport.check(self, facts)

    def demand(self, path: str, body: Mapping[str, object], *, timeout_s: float) -> dict[str, Any]:
        """A POST whose answer must not say `success: false`."""
        answer = self.call(path, body, timeout_s=timeout_s)
        if answer.get("success") is False:
            raise EngineError(f"{self.url}{path} was refused: {answer.get('message')}")
        return answer

    def call(self, path: str, body: Mapping[str, object] | None, *, timeout_s: float) -> dict[str, Any]:
        """A POST, or a GET without a body; the object of the answer. EngineError unless it is good."""
        try:
            content = parse_json(self._body(path, body, timeout_s) or b"{}")
        except ValueError as error:
            raise EngineError(f"{self.url}{path}: {error}") from error
        if not isinstance(content, dict):
            raise EngineError(f"{self.url}{path}: reply is no JSON object")
        return content

    def _body(self, path: str, body: Mapping[str, object] | None, timeout_s: float) -> bytes:
        try:
            answer = exchange(self.url, path, body, api_key=self.api_key, timeout_s=timeout_s)
        except NO_ANSWER as error:
            raise EngineLostError(f"{self.url}{path}: {error!r}") from error
        if answer.is_refusal:
            raise EngineError(f"{self.url}{path}: {answer.status} {answer.words}")
        return answer.body
