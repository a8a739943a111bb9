"""The proxy's HTTP side, on loopback: episodes to play, and chat completions within them.

    POST /episodes                            the next episode, with the address of its completions
    GET  /episodes/KEY                        what was seen last
    POST /episodes/KEY/v1/chat/completions    as OpenAI's; also POST /v1/chat/completions with KEY as the API key
    POST /episodes/KEY/step                   {"action": TEXT}
    POST /episodes/KEY/abandon                {"reason": TEXT}

Bodies and answers are JSON; errors have OpenAI's form.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from aiohttp import web

from clients.proxy.completions import ChatRequestError, parse_request
from clients.proxy.outside import Door, NotNowError, OutsideAgent, OverError
from longturn.errors import ConfigError, LongturnError, PolicyError

_MAX_BODY_BYTES = 64 * 2**20
_MAX_WAIT_S = 600.0
_STATUS: dict[type[LongturnError], int] = {
    ChatRequestError: 400,
    NotNowError: 409,
    OverError: 410,
    PolicyError: 502,
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProxyServer:
    """Routes of the proxy."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.url = ""

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.post("/episodes", self._claim),
                web.post("/episodes/{key}/v1/chat/completions", self._complete),
                web.post("/v1/chat/completions", self._complete),
                web.post("/episodes/{key}/step", self._step),
                web.get("/episodes/{key}", self._look),
                web.post("/episodes/{key}/abandon", self._abandon),
                web.get("/episodes/{key}/v1/models", self._models),
                web.get("/v1/models", self._models),
            ]
        )
        return app

    async def _claim(self, request: web.Request) -> web.Response:
        agent = await self._door.claim(_seconds(request.query.get("wait_s", "60")))
        if agent is None or agent.plan is None or agent.newest is None:
            message = "no episode is to be played now; ask again"
            return web.json_response(_error(message, "NO_EPISODE"), status=503, headers={"Retry-After": "1"})
        task = agent.plan.task
        return web.json_response(
            {
                "key": agent.key,
                "base_url": f"{self.url}/episodes/{agent.key}/v1",
                "environment": task.environment,
                "task_id": task.task_id,
                "knobs": dict(task.knobs),
                "seed": agent.plan.seed,
                "max_turns": agent.plan.max_turns,
                **asdict(agent.newest),
            }
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        agent = self._agent(request)
        asked = parse_request(await request.read())
        reply = await agent.complete(asked)
        if not asked.is_stream:
            return web.json_response(reply.to_json(asked))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in reply.to_events(asked):
            await response.write(event)
        return response

    async def _step(self, request: web.Request) -> web.Response:
        agent = self._agent(request)
        action = (await _object(request)).get("action")
        if not isinstance(action, str):
            raise ChatRequestError('the body must be {"action": TEXT}')
        return web.json_response(asdict(await agent.step(action)))

    async def _look(self, request: web.Request) -> web.Response:
        newest = self._agent(request).newest
        return web.json_response(asdict(newest) if newest else {})

    async def _abandon(self, request: web.Request) -> web.Response:
        agent = self._agent(request)
        agent.abandon(str((await _object(request)).get("reason", "")))
        return web.json_response({})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "run"}]})

    def _agent(self, request: web.Request) -> OutsideAgent:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        agent = self._door.find(request.match_info.get("key", bearer))
        if agent is None:
            raise OverError("no such episode: it ended long ago, or was never given out; POST /episodes gives one")
        return agent


@asynccontextmanager
async def serving_proxy(door: Door, *, port: int, setting: str) -> AsyncIterator[ProxyServer]:
    """The proxy on a port of loopback; ConfigError naming the setting if it is taken."""
    server = ProxyServer(door)
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            raise ConfigError(f"port {port} of loopback cannot be used ({error.strerror}); set {setting}") from error
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (ChatRequestError, NotNowError, OverError, PolicyError) as error:
        return web.json_response(_error(str(error), error.reason), status=_STATUS[type(error)])


def _error(message: str, code: str) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


async def _object(request: web.Request) -> dict[str, Any]:  # Any: JSON
    try:
        value = json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise ChatRequestError(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ChatRequestError("the body is no JSON object")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ChatRequestError(f"wait_s {text!r} is no number") from error
    if not 0 <= value <= _MAX_WAIT_S:
        raise ChatRequestError(f"wait_s must lie between 0 and {_MAX_WAIT_S:g}")
    return value
