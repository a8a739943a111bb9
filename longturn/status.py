"""How a daemon says how it is and whom it waits for: a board it writes on, and the service that shows the board."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from longturn.errors import ConfigError, UnreachableError
from longturn.metrics import Metrics
from longturn.v1 import status_pb2, status_pb2_grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    peer: str
    reason: str
    started_s: float
    budget_s: float


class StatusBoard:
    """What a daemon says about itself. May be written and read from any thread."""

    def __init__(self, daemon: str, metrics: Metrics) -> None:
        self._daemon = daemon
        self._metrics = metrics
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._phase = "starting"
        self._facts: dict[str, str] = {}
        self._waits: dict[int, _Wait] = {}
        self._next_wait = 0

    def set_phase(self, phase: str) -> None:
        """Say what the daemon does now, in a word."""
        with self._lock:
            self._phase = phase

    def set_fact(self, name: str, value: object) -> None:
        """State a fact such as run_id."""
        with self._lock:
            self._facts[name] = str(value)

    @contextmanager
    def waiting(self, peer: str, reason: str, *, budget_s: float = 0.0) -> Iterator[None]:
        """Show that the daemon waits for `peer` while the block runs; budget 0 means without end."""
        wait = _Wait(peer=peer, reason=reason, started_s=time.monotonic(), budget_s=budget_s)
        with self._lock:
            key = self._next_wait
            self._next_wait += 1
            self._waits[key] = wait
        try:
            yield
        finally:
            with self._lock:
                del self._waits[key]

    def snapshot(self) -> status_pb2.GetStatusResponse:
        """The board as a message."""
        now_s = time.monotonic()
        values = self._metrics.snapshot()
        with self._lock:
            waits = [
                status_pb2.Wait(
                    peer=wait.peer, reason=wait.reason, waited_s=now_s - wait.started_s, budget_s=wait.budget_s
                )
                for wait in self._waits.values()
            ]
            return status_pb2.GetStatusResponse(
                daemon=self._daemon,
                phase=self._phase,
                pid=os.getpid(),
                uptime_s=now_s - self._started_s,
                waits=waits,
                values=values,
                facts=self._facts,
            )


class StatusServicer(status_pb2_grpc.StatusServiceServicer):
    """Shows a board; works under grpc and grpc.aio servers."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def GetStatus(  # noqa: N802  # the method's name on the wire
        self, request: status_pb2.GetStatusRequest, context: object
    ) -> status_pb2.GetStatusResponse:
        """Return a snapshot."""
        return self._board.snapshot()


class StatusServer:
    """A thread-based gRPC server for daemons that have no gRPC server of their own."""

    def __init__(self, board: StatusBoard, *, port: int = 0, setting: str = "status_port") -> None:
        """Serve on a loopback port, 0 for a free one; ConfigError naming `setting` if it is taken."""
        threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="status")
        # gRPC would share a port with another daemon and answer for it now and then.
        self._server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        status_pb2_grpc.add_StatusServiceServicer_to_server(StatusServicer(board), self._server)
        try:
            self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError as error:
            raise ConfigError(
                f"cannot serve the status on port {port}: it is in use; change {setting} (0 chooses a free one)"
            ) from error
        self._server.start()

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.stop(grace=None).wait()


def get_status(address: str, *, timeout_s: float = 2.0) -> status_pb2.GetStatusResponse:
    """Ask the daemon at `address` for its status; raise UnreachableError if it does not answer in time."""
    with grpc.insecure_channel(address) as channel:
        stub = status_pb2_grpc.StatusServiceStub(channel)
        try:
            return stub.GetStatus(status_pb2.GetStatusRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise UnreachableError(f"no daemon answers at {address}; is it running?") from error
