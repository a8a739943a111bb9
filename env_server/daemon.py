"""The process around the server: ready file, metrics port, signals."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing, nullcontext
from pathlib import Path

from env_server.config import EnvServerConfig
from env_server.server import serving
from env_server.traces import tracing
from longturn.errors import LongturnError
from longturn.leaf import first_leaf
from longturn.metrics import Metrics, MetricsServer
from longturn.ready import write_ready
from longturn.status import StatusBoard, StatusServer


def run(config: EnvServerConfig, *, ready_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; raise LongturnError if the server cannot start.

    A signal that comes before the server is up ends it at once.
    """
    failure: LongturnError | None = None
    try:
        asyncio.run(_serve(config, ready_file))
    except* LongturnError as group:
        failure = first_leaf(group)
    # Raised inside `except*` it would come out wrapped in a group before Python 3.11.4.
    if failure is not None:
        raise failure


async def _serve(config: EnvServerConfig, ready_file: Path | None) -> None:
    stopped, is_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    serve = asyncio.create_task(_serve_until(stopped, is_up, config, ready_file))
    stop = asyncio.create_task(stopped.wait())
    await asyncio.wait([serve, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not is_up.is_set():
        serve.cancel()
    await asyncio.wait([serve])
    if not serve.cancelled():
        serve.result()


async def _serve_until(
    stopped: asyncio.Event, is_up: asyncio.Event, config: EnvServerConfig, ready_file: Path | None
) -> None:
    metrics = Metrics()
    board = StatusBoard("env_server", metrics)
    with (
        _metrics_server(config, metrics) as metrics_server,
        _status_server(config, board) as status_server,
        tracing(is_wanted=config.traces) as tracers,
    ):
        async with serving(config, metrics=metrics, board=board, tracers=tracers) as server:
            is_up.set()
            status_address = server.address if status_server is None else status_server.address
            facts = {"address": server.address, "status_address": status_address}
            if metrics_server is not None:
                facts["metrics_address"] = f"127.0.0.1:{metrics_server.port}"
            write_ready(ready_file, facts)
            await stopped.wait()
            await server.drain(config.drain_timeout_s)


def _status_server(config: EnvServerConfig, board: StatusBoard) -> closing[StatusServer] | nullcontext[None]:
    """Where the server asks for TLS or a token, `longturn status` on this machine asks a port on loopback instead."""
    return closing(StatusServer(board)) if config.is_guarded else nullcontext()


def _metrics_server(config: EnvServerConfig, metrics: Metrics) -> closing[MetricsServer] | nullcontext[None]:
    if config.metrics_port is None:
        return nullcontext()
    return closing(MetricsServer(metrics, port=config.metrics_port, setting="env_server.metrics_port"))
