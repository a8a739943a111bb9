"""What engines call themselves, for the record of who sampled. A turn that is complete is not given up for it."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import aiohttp

from clients.policies.engines import Engine
from longturn.metrics import Metrics
from longturn.records import EngineInfo

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 5.0
_ASK_AGAIN_S = 60.0
_UNNAMED = EngineInfo(name="", version="")


class EngineNames:
    """Name and version of each engine, asked until it once answers, at most once a minute."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: dict[str, EngineInfo] = {}
        self._ask_at_s: dict[str, float] = {}
        self._asking = asyncio.Lock()

    async def of(self, engine: Engine, session: aiohttp.ClientSession) -> EngineInfo:
        """What the engine says it is; empty where it says nothing. A failure is counted, the first one logged."""
        if engine.url not in self._known:
            # Many first turns end together: one of them asks, the others wait for its answer.
            async with self._asking:
                if engine.url not in self._known and time.monotonic() >= self._ask_at_s.get(engine.url, 0.0):
                    await self._ask(engine, session)
        return self._known.get(engine.url, _UNNAMED)

    async def _ask(self, engine: Engine, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=_ASK_TIMEOUT_S)
        try:
            async with session.get(f"{engine.url}/server_info", headers=engine.headers, timeout=timeout) as response:
                response.raise_for_status()
                self._known[engine.url] = _engine_info(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._metrics.count("actors/engine/num_unnamed")
            if engine.url not in self._ask_at_s:
                logger.warning("engine does not say what it is", extra={"url": engine.url, "cause": repr(error)})
            self._ask_at_s[engine.url] = time.monotonic() + _ASK_AGAIN_S


def _engine_info(body: bytes) -> EngineInfo:
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise ValueError(f"/server_info is no JSON object: {body[:100]!r}")
    return EngineInfo(name=str(fields.get("engine") or ""), version=str(fields.get("version") or ""))
