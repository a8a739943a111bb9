"""A worker process: `python -m env_server.worker ORDERS`, started by the server and fed over a socket pair.

Invariant: every item that asks for an answer gets exactly one, unless the process dies; at the end of the stream it
exits. Steps run one after another on the main thread, except those of environments that say they are thread-safe.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_server import hop
from env_server.environment import Environment
from env_server.hop import Kind, Phase
from env_server.registry import load
from env_server.replay import ReplayOrder, replay
from env_server.spec_json import spec_to_json
from env_server.stage import BrokenError, Stage, StageError, StartOrder, guarded
from longturn.errors import ConfigError
from longturn.parent import die_with_parent

HOLD_S = 0.001
"""A finished result waits at most this long for company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrders:
    """The command line of a worker."""

    socket_fd: int
    slots_fd: int
    parent_pid: int
    is_preparer: bool
    num_threads: int
    environments: tuple[str, ...]
    is_strict: bool
    """Whether an environment that does not import is an error; otherwise it is left out."""


class Outbox:
    """Sends results; several that are ready at once travel in one write. May be used from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._items: deque[bytes] = deque()

    def put(self, kind: int, key: int, payload: bytes) -> None:
        """Add one item; it travels with the next flush."""
        self._items.append(hop.pack(kind, key, payload))

    def flush(self) -> None:
        """Send what is there. A thread that comes meanwhile leaves its items to the one that is sending."""
        while self._items and self._lock.acquire(blocking=False):
            try:
                self._connection.sendall(b"".join([self._items.popleft() for _ in range(len(self._items))]))
            finally:
                self._lock.release()


class Slot:
    """Says in shared memory what one thread runs now, so that the server knows it even after a kill."""

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        self._memory = memory
        self._offset = index * hop.SLOT.size

    def begin(self, key: int, phase: int) -> None:
        """This thread runs `key` from now on."""
        hop.SLOT.pack_into(self._memory, self._offset, key, time.monotonic(), phase)

    def end(self) -> None:
        """This thread runs nothing."""
        hop.SLOT.pack_into(self._memory, self._offset, 0, 0.0, 0)


class Worker:
    """Runs items until the stream ends."""

    def __init__(self, orders: WorkerOrders, environments: Mapping[str, type[Environment]]) -> None:
        self._is_preparer = orders.is_preparer
        self._connection = socket.socket(fileno=orders.socket_fd)
        self._outbox = Outbox(self._connection)
        self._stage = Stage(environments)
        self._memory = mmap.mmap(orders.slots_fd, hop.SLOT.size * (orders.num_threads + 1))
        self._slot = Slot(self._memory, 0)
        self._num_threads = orders.num_threads
        self._queue: queue.SimpleQueue[tuple[int, int, bytes]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._step_s = 0.0

    def run(self, ready: bytes) -> None:
        """Say ready, then serve."""
        self._outbox.put(Kind.READY, 0, ready)
        self._outbox.flush()
        parser = hop.ItemParser()
        while data := self._connection.recv(1 << 18):
            self._take(list(parser.feed(data)))

    def _take(self, items: list[tuple[int, int, bytes]]) -> None:
        flushed_at = time.monotonic()
        for kind, key, payload in items:
            if self._goes_to_thread(kind, key):
                self._hand_over((kind, key, payload))
                continue
            started_at = time.monotonic()
            if started_at + self._step_s - flushed_at > HOLD_S:
                self._outbox.flush()
                flushed_at = started_at
            self._run_item(self._slot, kind, key, payload)
            took_s = time.monotonic() - started_at
            # Clipped: on a busy machine a step that was only preempted must not break up the batches after it.
            self._step_s += 0.2 * (min(took_s, 4 * self._step_s + 2e-5) - self._step_s)
        self._slot.end()
        self._outbox.flush()

    def _goes_to_thread(self, kind: int, key: int) -> bool:
        if self._is_preparer:
            return kind == Kind.PREPARE
        return kind == hop.STEP and self._stage.prefers_thread(key)

    def _hand_over(self, item: tuple[int, int, bytes]) -> None:
        self._queue.put(item)
        if len(self._threads) < self._num_threads and self._queue.qsize() > 0:
            slot = Slot(self._memory, len(self._threads) + 1)
            thread = threading.Thread(target=self._serve_queue, args=(slot,), daemon=True, name="step")
            self._threads.append(thread)
            thread.start()

    def _serve_queue(self, slot: Slot) -> None:
        while True:
            self._run_item(slot, *self._queue.get())
            slot.end()
            self._outbox.flush()

    def _run_item(self, slot: Slot, kind: int, key: int, payload: bytes) -> None:
        """Run one item and put its answer into the outbox."""
        try:
            answer = self._answer(slot, kind, key, payload)
        except BrokenError as error:
            self._outbox.put(Kind.BROKEN, key, error.to_json())
        except StageError as error:
            self._outbox.put(Kind.REFUSED, key, error.to_json())
        else:
            if answer is not None:
                self._outbox.put(hop.RESULT, key, answer)

    def _answer(self, slot: Slot, kind: int, key: int, payload: bytes) -> bytes | None:
        if kind == hop.STEP:
            slot.begin(key, Phase.STEP)
            return self._stage.step(key, payload.decode()).SerializeToString()
        slot.begin(key, Phase.PREPARE if kind == Kind.PREPARE else Phase.START)
        match Kind(kind):
            case Kind.START:
                return self._stage.start(key, StartOrder.from_json(payload)).SerializeToString()
            case Kind.CLOSE:
                return self._stage.close(key)
            case Kind.REPLAY | Kind.TRANSCRIPT:
                return self._replay(slot, key, payload, is_kept=kind == Kind.REPLAY)
            case Kind.PREPARE:
                return self._prepare(StartOrder.from_json(payload))
            case Kind.LIST_TASKS:
                return self._list_tasks(json.loads(payload))
            case _:
                raise StageError("BAD_REQUEST", f"a worker takes no item of kind {kind}")

    def _replay(self, slot: Slot, key: int, payload: bytes, *, is_kept: bool) -> bytes:
        def before_turn() -> None:
            slot.begin(key, Phase.STEP)

        try:
            whole = replay(self._stage, key, ReplayOrder.from_json(payload), before_turn)
        except StageError:
            self._stage.close(key)
            raise
        if not is_kept:
            self._stage.close(key)
            return whole.SerializeToString()
        last = whole.transcript[-1].result if whole.transcript else whole.initial
        return last.SerializeToString()

    def _prepare(self, order: StartOrder) -> bytes:
        environment = self._stage.environment(order.environment)
        guarded(environment.prepare, order.task_id, order.knobs, order.seed)
        return b""

    def _list_tasks(self, query: dict[str, Any]) -> bytes:
        return guarded(_task_page, self._stage.environment(query["environment"]), query)


def _task_page(environment: type[Environment], query: Mapping[str, Any]) -> bytes:
    """Entirely the environment's word, so all of it is made under `guarded`."""
    split, filters = query["split"], query["filters"]
    tasks = environment.tasks(split, query["start"], query["count"], filters)
    listed = [
        {"task_id": task.task_id, "kind": task.kind, "knobs": dict(task.knobs), "score_max": task.score_max}
        for task in tasks
    ]
    return json.dumps({"num_tasks": environment.num_tasks(split, filters), "tasks": listed}).encode()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The environments of this worker, and why others were left out."""

    environments: dict[str, type[Environment]]
    left_out: dict[str, str]


def load_environments(orders: WorkerOrders) -> Loaded:
    """Import and warm up the environments. Where one cannot be had, strict orders raise ConfigError or StageError."""
    loaded, left_out = dict[str, type[Environment]](), dict[str, str]()
    for name in orders.environments:
        try:
            environment = load(name)
            guarded(environment.warm_up)
        except (ConfigError, StageError) as error:
            if orders.is_strict:
                raise
            left_out[name] = str(error)
            continue
        if environment.spec.name in loaded:
            raise ConfigError(f"two environments are named {environment.spec.name}; change env_server.environments")
        loaded[environment.spec.name] = environment
    if not loaded:
        raise ConfigError(f"no environment can be served: {'; '.join(left_out.values())}")
    return Loaded(loaded, left_out)


def describe(loaded: Loaded) -> bytes:
    """What a worker says when it is ready."""
    plain = Environment.prepare.__func__
    environments = [
        {"spec": spec_to_json(kind.spec), "prepares": kind.prepare.__func__ is not plain}
        for kind in loaded.environments.values()
    ]
    has_thread_safe = any(kind.spec.is_thread_safe for kind in loaded.environments.values())
    described = {"environments": environments, "left_out": loaded.left_out, "has_thread_safe": has_thread_safe}
    return json.dumps(described).encode()


def main(text: str) -> None:
    """Run a worker as its orders say."""
    orders = WorkerOrders(**json.loads(text))
    die_with_parent(orders.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to answer: it drains, then ends its workers
    os.set_inheritable(orders.socket_fd, False)
    os.set_inheritable(orders.slots_fd, False)
    os.dup2(2, 1)  # what an environment prints is a log, and the server's stdout is not ours
    try:
        loaded = load_environments(orders)
    except (ConfigError, StageError) as error:
        os.write(orders.socket_fd, hop.pack(Kind.REFUSED, 0, StageError("BAD_REQUEST", str(error)).to_json()))
        sys.exit(2)
    Worker(orders, loaded.environments).run(describe(loaded))


if __name__ == "__main__":
    main(sys.argv[1])
