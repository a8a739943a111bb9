"""The HTTP face of the engine: SGLang 0.5.23's endpoints, fields and status codes.

Each handler decodes, calls the engine, encodes; nothing here touches the scheduler but through `Engine.call`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Mapping
from importlib.metadata import version
from typing import Any, TypeVar  # JSON bodies are free-form

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from local_engine.dialect import Dialect
from local_engine.engine import Engine
from local_engine.errors import BadRequestError, EngineError, QueueFullError, UnhealthyError
from local_engine.model import Model
from local_engine.request import Request
from local_engine.scheduler import PauseMode, Scheduler
from local_engine.update import WeightUpdates
from longturn.json_text import parse_json
from longturn.metrics import Metrics

T = TypeVar("T")

SGLANG_DIALECT = "0.5.23"
# Answered without a key, so that a launcher or load balancer can probe.
OPEN_PATHS = frozenset({"/health"})
HEALTH_TIMEOUT_S = 20.0


class EngineServer:
    """Handlers of one engine."""

    def __init__(
        self,
        engine: Engine,
        model: Model,
        updates: WeightUpdates,
        dialect: Dialect,
        *,
        facts: Mapping[str, Any],
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._model = model
        self._updates = updates
        self._dialect = dialect
        self._facts = facts
        self._metrics = metrics
        self._registry = CollectorRegistry()
        self._registry.register(metrics)  # type: ignore[arg-type]  # a collector is whatever has `collect`

    def application(self, *, api_key: str, max_request_bytes: int) -> web.Application:
        """The aiohttp application; with a key, every path but /health demands it."""
        middlewares: list[Middleware] = [error_middleware, *([key_middleware(api_key)] if api_key else [])]
        app = web.Application(middlewares=middlewares, client_max_size=max_request_bytes)
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/pause_generation", self.pause),
                web.post("/continue_generation", self.resume),
                web.post("/update_weights_from_disk", self.update_weights),
                web.post("/abort_request", self.abort),
                web.route("GET", "/flush_cache", self.flush),
                web.route("POST", "/flush_cache", self.flush),
                web.get("/health", self.health),
                web.get("/health_generate", self.health_generate),
                web.get("/model_info", self.model_info),
                web.get("/server_info", self.server_info),
                web.get("/v1/loads", self.loads),
                web.get("/metrics", self.scrape),
            ]
        )
        return app

    async def generate(self, http: web.Request) -> web.Response:
        """Sample completions. A client that hangs up aborts them."""
        body = await read_json(http)
        # Parsing 64 prompts takes milliseconds, but a thread hop costs more than one prompt.
        requests, is_list = self._dialect.parse(body)
        self._metrics.count("engine/request/started", len(requests))
        await self._engine.generate(requests)
        self._count_finished(requests)
        refuse_failed(requests)
        replies = [self._dialect.reply(request) for request in requests]
        return json_response(replies if is_list else replies[0])

    async def pause(self, http: web.Request) -> web.Response:
        """Stop between two steps."""
        body = await read_object(http)
        try:
            mode = PauseMode(body.get("mode") or "abort")
        except ValueError as error:
            raise BadRequestError(f"mode must be abort, retract or in_place, got {body.get('mode')!r}") from error
        await self._engine.call(lambda scheduler: scheduler.pause(mode))
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, http: web.Request) -> web.Response:
        """Go on."""
        await self._engine.call(Scheduler.resume)
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weights(self, http: web.Request) -> web.Response:
        """Replace all weights by those of a folder below the weights root."""
        outcome = await self._updates.update(await read_object(http))
        status = 200 if outcome["success"] else 400
        return json_response(outcome, status=status)

    async def abort(self, http: web.Request) -> web.Response:
        """End requests whose id starts with `rid`, or all."""
        body = await read_object(http)
        prefix, is_all = body.get("rid"), bool(body.get("abort_all", False))
        if not is_all and (not isinstance(prefix, str) or not prefix):
            raise BadRequestError("give rid (a non-empty string) or abort_all true")
        await self._engine.call(
            lambda scheduler: scheduler.abort(lambda request: is_all or request.request_id.startswith(str(prefix)))
        )
        return web.Response()

    async def flush(self, http: web.Request) -> web.Response:
        """Forget computed prefixes; waits up to `timeout` seconds for the engine to be idle."""
        try:
            timeout_s = float(http.query.get("timeout", "0"))
        except ValueError as error:
            raise BadRequestError("timeout must be a number of seconds") from error
        is_flushed = await self._engine.call(Scheduler.flush)
        if not is_flushed and timeout_s > 0:
            await self._engine.wait_idle(timeout_s)
            is_flushed = await self._engine.call(Scheduler.flush)
        message = "Cache flushed." if is_flushed else "Cache not flushed: requests are running or waiting."
        return json_response({"success": is_flushed, "message": message}, status=200 if is_flushed else 400)

    async def health(self, http: web.Request) -> web.Response:
        """Whether the compute thread turns and the weights are whole."""
        is_healthy = await within(HEALTH_TIMEOUT_S, self._engine.call(lambda scheduler: scheduler.is_healthy))
        if not is_healthy:
            raise UnhealthyError("a weight load broke off; load a whole version")
        return web.Response()

    async def health_generate(self, http: web.Request) -> web.Response:
        """Sample one token; a paused engine only proves that its thread turns."""
        response = await self.health(http)
        if not await self._engine.call(lambda scheduler: scheduler.is_paused):
            requests, _ = self._dialect.parse({"input_ids": [0], "sampling_params": {"max_new_tokens": 1}})
            await within(HEALTH_TIMEOUT_S, self._engine.generate(requests))
            refuse_failed(requests)
        return response

    async def model_info(self, http: web.Request) -> web.Response:
        """What is served, and under which weight version."""
        weight_version = await self._engine.call(lambda scheduler: scheduler.weight_version)
        return json_response(
            {
                "model_path": self._facts["model_path"],
                "tokenizer_path": self._facts["model_path"],
                "is_generation": True,
                "weight_version": weight_version,
                "architectures": self._model.raw_config.get("architectures"),
                "model_type": self._model.raw_config.get("model_type"),
            }
        )

    async def server_info(self, http: web.Request) -> web.Response:
        """Settings and conventions."""
        weight_version, is_paused = await self._engine.call(
            lambda scheduler: (scheduler.weight_version, scheduler.is_paused)
        )
        return json_response(
            {
                **self._facts,
                "engine": "longturn-local",
                "version": version("longturn"),
                "sglang_dialect": SGLANG_DIALECT,
                "logprobs": "after temperature",
                "weight_version": weight_version,
                "is_paused": is_paused,
            }
        )

    async def loads(self, http: web.Request) -> web.Response:
        """How busy the engine is."""
        core = await self._engine.call(self._core_load)
        aggregate = {"total_running_reqs": core["num_running_reqs"], "total_waiting_reqs": core["num_waiting_reqs"]}
        return json_response({"timestamp": time.time(), "dp_rank_count": 1, "loads": [core], "aggregate": aggregate})

    async def scrape(self, http: web.Request) -> web.Response:
        """Prometheus text."""
        core = await self._engine.call(self._core_load)
        self._metrics.gauge("engine/request/num_running", core["num_running_reqs"])
        self._metrics.gauge("engine/request/num_waiting", core["num_waiting_reqs"])
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _core_load(self, scheduler: Scheduler) -> dict[str, Any]:
        counts = self._metrics.snapshot()
        num_prompt = counts.get("engine/prompt/tokens", 0.0)
        num_used = scheduler.slots.num_used_tokens
        max_total = self._facts["max_total_num_tokens"]
        return {
            "dp_rank": 0,
            "num_running_reqs": scheduler.num_running,
            "num_waiting_reqs": scheduler.num_waiting,
            "num_used_tokens": num_used,
            "max_total_num_tokens": max_total,
            "token_usage": num_used / max_total,
            "cache_hit_rate": counts.get("engine/prompt/cached_tokens", 0.0) / num_prompt if num_prompt else 0.0,
            "max_running_requests": self._facts["max_running_requests"],
        }

    def _count_finished(self, requests: list[Request]) -> None:
        for request in requests:
            self._metrics.count("engine/request/finished")
            self._metrics.count("engine/prompt/tokens", len(request.prompt))
            self._metrics.count("engine/prompt/cached_tokens", request.num_cached or 0)
            self._metrics.count("engine/output/tokens", len(request.output_ids))


def refuse_failed(requests: list[Request]) -> None:
    """Raise if the engine itself failed a request; an abort by a client is an ordinary reply."""
    for request in requests:
        if request.finish is not None and request.finish.status_code is not None:
            raise UnhealthyError(f"request {request.request_id}: {request.finish.abort_message}")


async def within(timeout_s: float, waited: Awaitable[T]) -> T:
    """Await, at most so long."""
    try:
        return await asyncio.wait_for(waited, timeout_s)
    except TimeoutError as error:
        raise UnhealthyError(f"no answer from the compute thread within {timeout_s:g} s") from error


async def read_json(http: web.Request) -> Any:
    """The body as JSON, whatever content type it claims."""
    try:
        return parse_json(await http.read() or b"{}")
    except ValueError as error:
        raise BadRequestError(f"the body is no JSON that can be read: {error}") from error


async def read_object(http: web.Request) -> Mapping[str, Any]:
    """The body as a JSON object; an empty body is an empty object."""
    body = await read_json(http)
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    return body


def json_response(content: object, *, status: int = 200) -> web.Response:
    """A compact JSON response."""
    body = json.dumps(content, separators=(",", ":")).encode()
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(error: EngineError, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """SGLang's error shape."""
    content = {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
    response = json_response(content, status=status)
    response.headers.update(headers or {})
    return response


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Engine errors become status codes; anything else is our bug and surfaces as 500."""
    try:
        return await handler(request)
    except QueueFullError as error:
        return error_response(error, 503, {"Retry-After": "1"})
    except UnhealthyError as error:
        return error_response(error, 503)
    except EngineError as error:
        return error_response(error, 400)


def key_middleware(api_key: str) -> Middleware:
    """Demand `Authorization: Bearer KEY`."""
    expected = f"Bearer {api_key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        offered = request.headers.get("Authorization", "").encode()
        if request.path not in OPEN_PATHS and not hmac.compare_digest(offered, expected):
            content = {"error": {"message": "missing or wrong key; send Authorization: Bearer KEY", "code": 401}}
            return json_response(content, status=401)
        return await handler(request)

    return check
