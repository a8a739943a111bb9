"""Builds the parts of an engine and serves until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # facts are JSON

from aiohttp import web

from local_engine.config import EngineConfig
from local_engine.dialect import Dialect
from local_engine.engine import Engine
from local_engine.errors import StartError
from local_engine.model import Model, load_model
from local_engine.server import EngineServer
from local_engine.update import WeightUpdates
from longturn.addresses import is_loopback
from longturn.metrics import Metrics
from longturn.ready import write_ready
from longturn.status import StatusBoard, StatusServer

logger = logging.getLogger(__name__)

KEY_VARIABLE = "LONGTURN_ENGINE_KEY"
SHUTDOWN_TIMEOUT_S = 2.0


def run(config: EngineConfig, *, ready_file: Path | None = None) -> None:
    """Load the model and serve until SIGINT or SIGTERM; raise `StartError` if it cannot."""
    api_key = read_key(config)
    metrics = Metrics()
    model = load_model(config, metrics)
    asyncio.run(serve(config, model, metrics, api_key=api_key, ready_file=ready_file))


def read_key(config: EngineConfig) -> str:
    """The key requests must carry, empty for none; off loopback there must be one."""
    key = config.api_key.get_secret_value()
    if not key and config.api_key_file is not None:
        try:
            key = config.api_key_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise StartError(f"cannot read engine.api_key_file: {error}") from error
    key = key or os.environ.get(KEY_VARIABLE, "")
    if not key and not is_loopback(config.host):
        raise StartError(f"engine.host {config.host} is not loopback: set engine.api_key_file or {KEY_VARIABLE}")
    return key


async def serve(config: EngineConfig, model: Model, metrics: Metrics, *, api_key: str, ready_file: Path | None) -> None:
    """Serve until a signal or a crash of the compute thread, which is raised."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    status = StatusServer(status_board(config, metrics))
    try:
        async with serving(config, model, metrics, api_key=api_key) as served:
            logger.info("engine serving", extra={"url": served.url, "needs_key": bool(api_key)})
            write_ready(ready_file, {"url": served.url, "address": served.url, "status_address": status.address})
            signalled = asyncio.create_task(stopped.wait(), name="signal")
            await asyncio.wait({served.compute, signalled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        status.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A serving engine."""

    url: str
    compute: asyncio.Task[None]
    """Ends when the compute thread does."""


@asynccontextmanager
async def serving(config: EngineConfig, model: Model, metrics: Metrics, *, api_key: str) -> AsyncIterator[Served]:
    """Listen while the block runs; a crash of the compute thread is raised at its end."""
    max_unfinished = config.max_running_requests + config.max_queued_requests
    engine = Engine(model.scheduler, max_unfinished=max_unfinished, metrics=metrics)
    runner = web.AppRunner(
        build_application(config, model, engine, metrics, api_key=api_key),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )
    await runner.setup()
    compute = asyncio.create_task(engine.run(), name="compute")
    try:
        yield Served(url=await bind(runner, config), compute=compute)
    finally:
        engine.stop()
        await runner.cleanup()
        await compute


def build_application(
    config: EngineConfig, model: Model, engine: Engine, metrics: Metrics, *, api_key: str
) -> web.Application:
    """Put handlers, dialect and updates together."""
    dialect = Dialect(model.limits, codec=model.codec, sampling_seed=config.sampling_seed)
    updates = WeightUpdates(engine, weights_root=config.weights_root, raw_config=model.raw_config, metrics=metrics)
    server = EngineServer(engine, model, updates, dialect, facts=server_facts(config, model), metrics=metrics)
    return server.application(api_key=api_key, max_request_bytes=config.max_request_bytes)


def server_facts(config: EngineConfig, model: Model) -> dict[str, Any]:
    """Settings that /server_info shows, under SGLang's names where it has one."""
    return {
        "model_path": str(config.model_path),
        "device": config.device,
        "dtype": config.dtype,
        "context_length": model.limits.context_tokens,
        "max_total_num_tokens": model.num_slots * model.limits.context_tokens,
        "max_running_requests": config.max_running_requests,
        "max_queued_requests": config.max_queued_requests,
        "skip_tokenizer_init": config.skip_tokenizer_init,
        "vocab_size": model.limits.vocab_size,
    }


def status_board(config: EngineConfig, metrics: Metrics) -> StatusBoard:
    """What `longturn status` shows."""
    board = StatusBoard("engine", metrics)
    board.set_phase("serving")
    board.set_fact("model_path", config.model_path)
    return board


async def bind(runner: web.AppRunner, config: EngineConfig) -> str:
    """Listen; return the base URL with the port in use."""
    site = web.TCPSite(runner, config.host, config.port)
    try:
        await site.start()
    except OSError as error:
        raise StartError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another port with"
            " --set engine.port=PORT (0 chooses a free one)"
        ) from error
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
