"""What engines call themselves and what their logprobs mean, for the record of who sampled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict

import aiohttp

from clients.policies.engines import Engine
from clients.policies.logprob_probe import probe_convention
from longturn.engine_facts import PATH, EngineFacts, read_server_info
from longturn.metrics import Metrics
from longturn.records import EngineInfo

logger = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_ASK_AGAIN_S = 60.0
_UNNAMED = EngineInfo(name="", version="")


class EngineNames:
    """Name, version and logprob convention of each engine, asked until it once answers, at most once a minute."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: dict[str, EngineInfo] = {}
        self._ask_at_s: dict[str, float] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, engine: Engine, session: aiohttp.ClientSession) -> EngineInfo:
        """What the engine says it is; empty where it says nothing. A failure is counted, the first one logged."""
        if engine.url not in self._known:
            # Many first turns end together: one of them asks, the others of that engine wait for its answer.
            async with self._asking[engine.url]:
                if engine.url not in self._known and time.monotonic() >= self._ask_at_s.get(engine.url, 0.0):
                    await self._ask(engine, session)
        return self._known.get(engine.url, _UNNAMED)

    def forget(self, engine: Engine) -> None:
        """Ask again: what answers at the address may be another process now."""
        self._known.pop(engine.url, None)

    async def _ask(self, engine: Engine, session: aiohttp.ClientSession) -> None:
        try:
            facts = await _server_info(engine, session)
            convention = facts.logprob_convention or await probe_convention(engine, session)
            self._known[engine.url] = EngineInfo(name=facts.name, version=facts.version, logprob_convention=convention)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._metrics.count("actors/engine/num_unnamed")
            if engine.url not in self._ask_at_s:
                logger.warning("engine does not say what it is", extra={"url": engine.url, "cause": repr(error)})
            self._ask_at_s[engine.url] = time.monotonic() + _ASK_AGAIN_S
            return
        fields = {"url": engine.url, "engine": facts.name, "version": facts.version, "logprobs": convention.name}
        logger.info("engine asked", extra={**fields, "version_spans": facts.has_version_spans})


async def _server_info(engine: Engine, session: aiohttp.ClientSession) -> EngineFacts:
    async with session.get(f"{engine.url}{PATH}", headers=engine.headers, timeout=_TIMEOUT) as response:
        response.raise_for_status()
        return read_server_info(await response.read())
