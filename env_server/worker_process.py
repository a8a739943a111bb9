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
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from env_server import hop
from env_server.fair_queue import FairQueue
from env_server.guard import Guard
from env_server.hop import Kind
from env_server.worker import WorkerOrders
from longturn.errors import ConfigError

logger = logging.getLogger(__name__)


PACK_HEADER = hop.HEADER.pack
AHEAD_S = 0.05
"""A worker is given about this much work ahead; what is beyond that waits here, where clients take turns."""
FEWEST_AHEAD = 8
"""Items a worker may always have, so that it never waits for the next one."""


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
    hidden_variables: frozenset[str] = frozenset()
    """Environment variables that are secrets of the server, and no business of an environment's code."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the workers' environment."""


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
        self._queue: FairQueue[tuple[int, int, bytes, Receiver]] = FairQueue()
        self._window = self._fewest_ahead = FEWEST_AHEAD
        self._answer_s = 0.0
        """How long the worker takes per answer, on average over the last ones."""
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
    def num_queued(self) -> int:
        """Questions that wait for their client's turn."""
        return len(self._queue)

    @property
    def queue_age_s(self) -> float:
        """How long the oldest of them has waited."""
        return self._queue.age_s

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
                env=self._variables(),
                pass_fds=(theirs.fileno(), slots.fileno()),
                start_new_session=True,
            )

    def _variables(self) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if name not in self.setup.hidden_variables}
        own = {"PYTHONPATH": _search_path(), "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        return given | dict(self.setup.variables) | own

    async def connect(self) -> None:
        """Begin to listen; must be awaited once, right after construction."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop listens from now on."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand every complete answer to its receiver."""
        receivers = self._receivers
        began_at_s, num_answers = max(self.heard_at_s, self._asked_at_s), 0
        self.heard_at_s = time.monotonic()
        for kind, key, payload in self._parser.feed(data):
            if key:
                num_answers += 1
                receivers.pop(key).worker_replied(kind, payload)
            elif kind == Kind.READY:
                self._be_ready(payload)
            else:
                self.ready.set_exception(ConfigError(json.loads(payload)["message"]))
        if num_answers:
            self._learn_pace((self.heard_at_s - began_at_s) / num_answers)
        while self._queue and len(receivers) < self._window:
            self._ask(*self._queue.take())

    def _be_ready(self, payload: bytes) -> None:
        if json.loads(payload)["has_thread_safe"]:  # as many steps as there are threads must be at hand
            self._window = self._fewest_ahead = max(FEWEST_AHEAD, self.setup.num_threads)
        self.ready.set_result(payload)

    def _learn_pace(self, answer_s: float) -> None:
        self._answer_s += 0.2 * (answer_s - self._answer_s)
        self._window = max(self._fewest_ahead, int(AHEAD_S / max(self._answer_s, 1e-6)))

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
        while self._queue:
            *_, receiver = self._queue.take()
            receiver.worker_lost(Loss.RETIRED)  # the worker never saw it, so it is no suspect

    def send(self, kind: int, key: int, payload: bytes, receiver: Receiver, client_id: str = "") -> None:
        """Ask for something; `receiver` gets the answer, or hears of the loss. One question per key at a time."""
        if self.state is WorkerState.DEAD:
            self._loop.call_soon(receiver.worker_lost, self._loss)
        elif len(self._receivers) < self._window:
            self._ask(kind, key, payload, receiver)
        else:
            self._queue.put(client_id, (kind, key, payload, receiver))

    def _ask(self, kind: int, key: int, payload: bytes, receiver: Receiver) -> None:
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

    async def call(self, kind: Kind, key: int, payload: bytes, client_id: str = "") -> tuple[int, bytes]:
        """Ask and wait; raise WorkerLostError if the worker dies first."""
        receiver = _FutureReceiver()
        self.send(kind, key, payload, receiver, client_id)
        return await receiver.future

    def _flush(self) -> None:
        items, self._outbox = self._outbox, []
        if self.state is not WorkerState.DEAD and self._transport is not None:
            self._transport.write(b"".join(items))

    @property
    def is_empty(self) -> bool:
        """Whether nothing lives or runs here."""
        return not self.keys and not self._receivers and not self._queue

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
