"""The server's end of one worker process: spawn, feed, listen, kill.

Invariant: every receiver given to `send` is told exactly once, by `worker_replied` or by `worker_lost`.
All methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from env_server import hop
from env_server.guard import Guard
from env_server.hop import Kind
from env_server.worker import WorkerOrders
from longturn.errors import ConfigError

logger = logging.getLogger(__name__)


PACK_HEADER = hop.HEADER.pack


class WorkerState(enum.Enum):
    """Where a worker stands."""

    STARTING = "starting"
    OPEN = "open"
    ISOLATED = "isolated"
    """Replays one suspect episode at a time and takes nothing else."""
    RETIRING = "retiring"
    """Keeps its episodes and takes no new ones."""
    DEAD = "dead"


class Loss(enum.Enum):
    """Why an answer will never come."""

    CRASHED = "crashed"
    """The process died by itself, or somebody killed it."""
    TIMED_OUT = "timed_out"
    """This very call exceeded its time limit."""
    NEIGHBOUR_TIMED_OUT = "neighbour_timed_out"
    """The process was killed because another call exceeded its time limit."""
    RETIRED = "retired"
    """The server ended the process on purpose."""


class WorkerLostError(Exception):
    """The worker died before it answered."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(f"worker lost: {loss.value}")
        self.loss = loss


class Receiver(Protocol):
    """Who waits for an answer."""

    def worker_replied(self, kind: int, payload: bytes) -> None:
        """The answer."""
        ...

    def worker_lost(self, loss: Loss) -> None:
        """There will be none."""
        ...


class _FutureReceiver:
    """Waits in a coroutine."""

    def __init__(self) -> None:
        self.future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def worker_replied(self, kind: int, payload: bytes) -> None:
        if not self.future.done():
            self.future.set_result((kind, payload))

    def worker_lost(self, loss: Loss) -> None:
        if not self.future.done():
            self.future.set_exception(WorkerLostError(loss))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What all workers of a pool have in common."""

    name: str
    environments: tuple[str, ...]
    is_strict: bool
    is_preparer: bool
    num_threads: int
    root: Path
    """Every worker gets an empty folder of its own in here."""


class WorkerProcess(asyncio.Protocol):
    """One process. `ready` resolves to what it said about its environments, or raises ConfigError."""

    def __init__(self, setup: WorkerSetup, guard: Guard) -> None:
        self.setup = setup
        self.state = WorkerState.STARTING
        self.is_usable = False
        """Whether episodes that live here can be stepped."""
        self.keys: dict[int, str] = {}
        """Episodes that live here, or are about to, each with the name of its environment."""
        self.num_started = 0
        self.is_replaced = False
        """Whether a successor was started already."""
        self.retire_at_s = 0.0
        self._loop = loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bytes] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.heard_at_s = self._asked_at_s = time.monotonic()
        self._guard = guard
        self._receivers: dict[int, Receiver] = {}
        self._culprits: frozenset[int] = frozenset()
        self._loss = Loss.CRASHED
        self._parser = hop.ItemParser()
        self._outbox: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._spawn()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def enter(self, state: WorkerState) -> None:
        """Change the state."""
        self.state = state
        self.is_usable = state in (WorkerState.OPEN, WorkerState.RETIRING)

    @property
    def num_waiting(self) -> int:
        """Answers that are still to come."""
        return len(self._receivers)

    @property
    def waited_since_s(self) -> float:
        """Since when, on the monotonic clock, an answer is owed and nothing was heard; infinity if none is owed."""
        return max(self.heard_at_s, self._asked_at_s) if self._receivers else math.inf

    def _spawn(self) -> None:
        """Raise OSError, and leave nothing behind, where the machine lacks something."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.setup.name}-", dir=self.setup.root))
        with ExitStack() as undo:
            undo.callback(self.folder.rmdir)
            self._socket, theirs = socket.socketpair()
            undo.callback(self._socket.close)
            with theirs:
                self._process = self._start_process(theirs)
            undo.pop_all()
        self._guard.watch(self._process.pid)
        self._socket.setblocking(False)

    def _start_process(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        slots_bytes = hop.SLOT.size * (self.setup.num_threads + 1)
        with tempfile.TemporaryFile() as slots:
            slots.truncate(slots_bytes)
            self._slots = mmap.mmap(slots.fileno(), slots_bytes)
            orders = WorkerOrders(
                socket_fd=theirs.fileno(),
                slots_fd=slots.fileno(),
                parent_pid=os.getpid(),
                is_preparer=self.setup.is_preparer,
                num_threads=self.setup.num_threads,
                environments=self.setup.environments,
                is_strict=self.setup.is_strict,
            )
            return subprocess.Popen(
                [sys.executable, "-m", "env_server.worker", json.dumps(asdict(orders))],
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": _search_path(), "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"},
                pass_fds=(theirs.fileno(), slots.fileno()),
                start_new_session=True,
            )

    async def connect(self) -> None:
        """Begin to listen; must be awaited once, right after construction."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop listens from now on."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand every complete answer to its receiver."""
        self.heard_at_s = time.monotonic()
        receivers = self._receivers
        for kind, key, payload in self._parser.feed(data):
            if key:
                receivers.pop(key).worker_replied(kind, payload)
            elif kind == Kind.READY:
                self.ready.set_result(payload)
            else:
                self.ready.set_exception(ConfigError(json.loads(payload)["message"]))

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone, or as good as gone: make sure, and tell everyone who waits."""
        self.enter(WorkerState.DEAD)
        self._kill_group()
        self._slots.close()
        if not self.ready.done():
            self.ready.set_exception(WorkerLostError(self._loss))
        self.ready.exception()  # a worker that nobody waits for may die before it is ready
        self.lost.set_result(None)
        receivers, self._receivers = self._receivers, {}
        for key, receiver in receivers.items():
            receiver.worker_lost(Loss.TIMED_OUT if key in self._culprits else self._loss)

    def send(self, kind: int, key: int, payload: bytes, receiver: Receiver) -> None:
        """Ask for something; `receiver` gets the answer, or hears of the loss. One question per key at a time."""
        if self.state is WorkerState.DEAD:
            self._loop.call_soon(receiver.worker_lost, self._loss)
            return
        if not self._receivers:
            self._asked_at_s = time.monotonic()
        self._receivers[key] = receiver
        self.post(kind, key, payload)

    def post(self, kind: int, key: int, payload: bytes = b"") -> None:
        """Say something that has no answer. All that is said in one turn of the loop travels together."""
        outbox = self._outbox
        if not outbox:
            self._loop.call_soon(self._flush)
        outbox.append(PACK_HEADER(kind, key, len(payload)))
        outbox.append(payload)

    async def call(self, kind: Kind, key: int, payload: bytes) -> tuple[int, bytes]:
        """Ask and wait; raise WorkerLostError if the worker dies first."""
        receiver = _FutureReceiver()
        self.send(kind, key, payload, receiver)
        return await receiver.future

    def _flush(self) -> None:
        items, self._outbox = self._outbox, []
        if self.state is not WorkerState.DEAD and self._transport is not None:
            self._transport.write(b"".join(items))

    @property
    def is_empty(self) -> bool:
        """Whether nothing lives or runs here."""
        return not self.keys and not self._receivers

    def running(self) -> list[tuple[int, float, int]]:
        """(key, start on the monotonic clock, phase) of everything that runs in the worker at this moment."""
        return [slot for slot in hop.SLOT.iter_unpack(self._slots[:]) if slot[0]]

    def rss_bytes(self) -> int:
        """Resident memory; 0 if it cannot be told."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self, loss: Loss, culprits: frozenset[int] = frozenset()) -> None:
        """End the process now; answers that are already on their way still count."""
        self._loss, self._culprits = loss, culprits
        if self.state is not WorkerState.DEAD:
            self._kill_group()

    async def reap(self) -> int:
        """Wait until the process is gone for good and free what it held; returns its exit code."""
        await asyncio.shield(self.lost)
        code = await asyncio.to_thread(self._process.wait)
        self._guard.forget(self._process.pid, self.folder)
        return code

    def _kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # the process is not reaped yet, so the id is still its own
        except ProcessLookupError:
            logger.debug("worker group was already gone", extra={"worker_pid": self._process.pid})


def _search_path() -> str:
    return os.pathsep.join(path or os.getcwd() for path in sys.path)
