"""A token policy over SGLang's native `POST /generate`, ids in and ids out.

Invariant: a completion is a chain of segments, each conditioned on the prompt and all earlier segments, and nothing
else; every token, logprob and version in it was reported by an engine. Both engine behaviours at a weight update are
covered: a frozen request answers late, with several version spans; an aborted one answers with a partial segment, and
the rest is asked for with the longer prefix and the remaining budget.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp

from clients.calls import Backoff
from clients.config import SglangConfig
from clients.policies.base import Completion, derive_seed
from clients.policies.engine_names import EngineNames
from clients.policies.engines import Engine, EngineRegistry
from clients.policies.sglang_reply import Segment, merge_spans, segment_from_reply
from clients.shared_wait import SharedWait
from longturn.errors import PolicyError, UnreachableError
from longturn.metrics import Metrics
from longturn.records import EngineInfo, FinishReason, LogprobConvention, PolicySpan, SamplingParams
from longturn.status import StatusBoard

logger = logging.getLogger(__name__)


class _IdTexts(dict[int, str]):
    """Token ids as JSON, made once each."""

    def __missing__(self, index: int) -> str:
        text = self[index] = str(index)
        return text


_ID_TEXTS = _IdTexts()
_RETRIED_STATUSES = frozenset({408, 425, 429, 499})


def refuse_before_temperature(info: EngineInfo, temperature: float, *, who: str) -> None:
    """PolicyError if the engine's logprobs are not those of the distribution that it sampled from."""
    if info.logprob_convention is LogprobConvention.BEFORE_TEMPERATURE and temperature not in (0.0, 1.0):
        raise PolicyError(
            f"{who} reports logprobs before temperature, and sampling is at temperature {temperature:g}: start it "
            "without SGLANG_RETURN_ORIGINAL_LOGPROB (vLLM: with --logprobs-mode processed_logprobs), or set "
            "learner.play.temperature = 1",
            reason="LOGPROB_CONVENTION",
        )


@dataclass(slots=True, kw_only=True)
class _Turn:
    """A completion in the making."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    episode_key: str
    turn_index: int
    stop_texts: list[str]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    policy_spans: tuple[PolicySpan, ...] = ()
    cached_tokens: int = 0
    num_segments: int = 0
    num_failures: int = 0
    avoid: set[str] = field(default_factory=set[str])

    @property
    def label(self) -> str:
        return f"episode {self.episode_key}, turn {self.turn_index}"

    @property
    def num_left(self) -> int:
        return self.sampling.max_new_tokens - len(self.token_ids)

    def add(self, segment: Segment) -> None:
        if self.num_segments == 0:
            self.cached_tokens = segment.cached_tokens
        self.policy_spans = merge_spans(self.policy_spans, segment.policy_spans, len(self.token_ids))
        self.token_ids += segment.token_ids
        self.logprobs += segment.logprobs
        self.num_segments += 1


class SglangPolicy:
    """Completes turns on the engines of a registry. Use it as an async context manager."""

    def __init__(
        self,
        config: SglangConfig,
        *,
        engines: EngineRegistry,
        stop_token_ids: Sequence[int],
        stop_texts: Sequence[str] = (),
        metrics: Metrics,
        board: StatusBoard | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._config = config
        self._engines = engines
        self._stop_token_ids = list(stop_token_ids)
        self._stop_texts = tuple(stop_texts)
        self._grammar: dict[str, object] = {
            name: text for name, text in (("regex", config.regex), ("json_schema", config.json_schema)) if text
        }
        self._metrics = metrics
        self._wait = SharedWait(board, "engine", budget_s=config.turn_budget_s)
        self._backoff = backoff or Backoff(first_s=0.05, most_s=2.0)
        self._names = EngineNames(metrics)

    async def __aenter__(self) -> SglangPolicy:
        timeout = aiohttp.ClientTimeout(total=self._config.request_timeout_s, sock_connect=5.0)
        connector = aiohttp.TCPConnector(limit=self._config.max_connections, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def complete(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        episode_key: str,
        turn_index: int,
        stop_texts: Sequence[str] = (),
    ) -> Completion:
        """One turn; see TokenPolicy. A request the engine refuses (4xx) is never repeated."""
        turn = _Turn(
            prompt_ids=tuple(prompt_ids),
            sampling=sampling,
            episode_key=episode_key,
            turn_index=turn_index,
            stop_texts=[*self._stop_texts, *stop_texts],
        )
        deadline_s = time.monotonic() + self._config.turn_budget_s
        while True:
            engine = await self._engine(turn, deadline_s)
            try:
                segment = await self._confirmed_segment(engine, turn)
            except UnreachableError as error:
                await self._after_failure(turn, engine, error, deadline_s)
                continue
            turn.add(segment)
            if segment.finish_reason is not FinishReason.ABORT or turn.num_left <= 0:
                return await self._finished(turn, engine, segment.finish_reason)
            await self._after_abort(turn, segment, deadline_s)

    async def _engine(self, turn: _Turn, deadline_s: float) -> Engine:
        """The turn's engine; while the learner names none, the turn waits for one until its deadline."""
        if self._engines.is_empty:
            with self._wait.waiting("no engine is in rotation"):
                while self._engines.is_empty:
                    if not await self._engines.wait_change(deadline_s - time.monotonic()):
                        budget_s = self._config.turn_budget_s
                        raise PolicyError(
                            f"{turn.label}: no engine came into rotation within {budget_s:g} s", reason="NO_ENGINE"
                        )
        return self._engines.choose(turn.episode_key, avoid=turn.avoid)

    async def _finished(self, turn: _Turn, engine: Engine, finish_reason: FinishReason) -> Completion:
        info = await self._names.of(engine, self._session)
        refuse_before_temperature(info, turn.sampling.temperature, who=f"{turn.label}: {engine.url}")
        return Completion(
            token_ids=turn.token_ids,
            logprobs=turn.logprobs,
            policy_spans=turn.policy_spans,
            finish_reason=FinishReason.LENGTH if finish_reason is FinishReason.ABORT else finish_reason,
            engine=info,
            cached_tokens=turn.cached_tokens,
        )

    async def _confirmed_segment(self, engine: Engine, turn: _Turn) -> Segment:
        """A segment whose versions the learner confirmed; the engine may know of a new one before the pool does."""
        segment = segment_from_reply(await self._post(engine, turn), who=turn.label)
        if segment.is_versioned and min(segment.versions, default=math.inf) < (engine.policy_version or 0):
            # Weights that the engine had replaced before the request was sent: it was started again meanwhile.
            self._discard(turn, segment, "stale")
            cause = f"{engine.url} fell back behind version {engine.policy_version}, which it had confirmed"
            raise UnreachableError(cause, reason="STALE_VERSION")
        if segment.token_ids and not await self._is_confirmed(segment):
            self._discard(turn, segment, "unconfirmed")
            raise UnreachableError(f"{engine.url} serves a version that was not announced", reason="UNCONFIRMED")
        return segment

    def _discard(self, turn: _Turn, segment: Segment, why: str) -> None:
        self._metrics.count(f"actors/turn/discarded_{why}")
        fields = {"episode": turn.episode_key, "reason": f"{why.upper()}_VERSION", "versions": segment.versions}
        logger.warning("turn discarded", extra=fields)

    async def _is_confirmed(self, segment: Segment) -> bool:
        if not self._engines.is_announced:
            return True
        if not segment.is_versioned:
            return False
        run_epoch = self._engines.run_epoch
        deadline_s = time.monotonic() + self._config.confirm_wait_s
        while not self._engines.is_confirmed(segment.versions):
            # A new epoch may give the same number to other weights.
            if not await self._engines.wait_change(deadline_s - time.monotonic()):
                return False
            if self._engines.run_epoch != run_epoch:
                return False
        return True

    async def _post(self, engine: Engine, turn: _Turn) -> bytes:
        """The reply's body; UnreachableError where another try may help, PolicyError where it may not."""
        try:
            async with self._session.post(
                f"{engine.url}/generate", data=self._body(engine, turn), headers=engine.headers
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            self._metrics.count("actors/engine/lost_requests")
            self._names.forget(engine)
            raise UnreachableError(f"{engine.url}: {type(error).__name__} {error}") from error
        if response.status == 200:
            return body
        text = body.decode("utf-8", "replace")[:500]
        if 400 <= response.status < 500 and response.status not in _RETRIED_STATUSES:
            self._metrics.count("actors/engine/refused_requests")
            raise PolicyError(
                f"{turn.label}: {engine.url} refused the request with {response.status}: {text}",
                reason="ENGINE_REFUSED",
            )
        self._metrics.count("actors/engine/failed_requests")
        raise UnreachableError(f"{engine.url} answered {response.status}: {text}")

    def _body(self, engine: Engine, turn: _Turn) -> bytes:
        """The request's JSON. Prompts are long and their ids few: looking texts up is half the cost of dumping them."""
        input_ids = ",".join(map(_ID_TEXTS.__getitem__, turn.prompt_ids + turn.token_ids))
        return f'{json.dumps(self._request(engine, turn))[:-1]},"input_ids":[{input_ids}]}}'.encode()

    def _request(self, engine: Engine, turn: _Turn) -> dict[str, object]:
        sampling = turn.sampling
        seed = derive_seed(sampling.seed, turn.turn_index, turn.num_segments)
        salt: dict[str, object] = {"cache_salt": engine.cache_salt} if engine.cache_salt else {}
        return salt | {
            # An engine that ends an id ends all that begin with it: without the dot, attempt 1 would end attempt 10.
            "rid": f"{turn.episode_key}:{turn.turn_index}:{turn.num_segments}:{turn.num_failures}.",
            "sampling_params": self._grammar
            | ({"stop": turn.stop_texts} if turn.stop_texts else {})
            | {
                "max_new_tokens": turn.num_left,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "stop_token_ids": self._stop_token_ids,
                "sampling_seed": seed,
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
                "no_stop_trim": True,
            },
            "return_logprob": True,
            "logprob_start_len": -1,
        }

    async def _after_abort(self, turn: _Turn, segment: Segment, deadline_s: float) -> None:
        status = segment.abort_status
        if status is not None and 400 <= status < 500 and status not in _RETRIED_STATUSES:
            raise PolicyError(
                f"{turn.label}: the engine refused: {segment.abort_message}",
                reason="ENGINE_REFUSED",
            )
        self._metrics.count("actors/turn/aborted_segments")
        # An abort without tokens comes from a paused or full engine: asking again at once would spin.
        if not segment.token_ids:
            turn.num_failures += 1
            await self._pause(turn, f"aborted: {segment.abort_message}", deadline_s)

    async def _after_failure(self, turn: _Turn, engine: Engine, error: UnreachableError, deadline_s: float) -> None:
        turn.num_failures += 1
        turn.avoid.add(engine.url)
        if len(turn.avoid) >= len(self._engines.engines):
            turn.avoid.clear()
        logger.info(
            "engine request failed",
            extra={
                "episode": turn.episode_key,
                "turn_index": turn.turn_index,
                "attempt": turn.num_failures,
                "cause": str(error),
            },
        )
        await self._pause(turn, str(error), deadline_s)

    async def _pause(self, turn: _Turn, cause: str, deadline_s: float) -> None:
        delay_s = self._backoff.delay_s(turn.num_failures)
        if time.monotonic() + delay_s > deadline_s:
            raise PolicyError(
                f"{turn.label}: no engine completed it within "
                f"{self._config.turn_budget_s:g} s and {turn.num_failures} failed requests; the last: {cause}",
                reason="ENGINE_AWAY",
            )
        with self._wait.waiting(cause):
            await asyncio.sleep(delay_s)
