"""Stands between a pool and its engine and keeps every request to /generate and its answer, byte for byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

_KEPT_HEADERS = ("Authorization", "Content-Type")


@dataclass(slots=True)
class RecordingProxy:
    """What passed."""

    url: str = ""
    exchanges: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    """Bodies of requests and of their answers of status 200, in the order in which these came."""

    def of(self, episode_key: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Exchanges of an episode, in order."""
        return [pair for pair in self.exchanges if str(pair[0].get("rid", "")).rsplit(":", 3)[0] == episode_key]


@asynccontextmanager
async def recording(engine_url: str) -> AsyncIterator[RecordingProxy]:
    """A proxy in front of one engine."""
    proxy = RecordingProxy()

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}
        async with session.request(
            request.method, f"{engine_url}{request.path_qs}", data=body or None, headers=headers
        ) as answer:
            content = await answer.read()
        if request.path == "/generate" and answer.status == 200:
            proxy.exchanges.append((json.loads(body), json.loads(content)))
        return web.Response(status=answer.status, body=content, content_type=answer.content_type)

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600.0)) as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield proxy
        finally:
            await runner.cleanup()
