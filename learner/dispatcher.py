"""The dispatcher: socket and ledger in a thread of their own, so that no training step delays an acknowledgement.

Invariant: router and ledger are created, used and closed by that thread alone. The training thread asks through `call`,
which runs a function there inside the current transaction and answers after its commit. One round of the loop is one
transaction: everything that arrived is applied, committed together, and only then answered. An error in a round ends
the thread; every later call raises it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from learner.assigner import Assigner
from learner.ledger.store import Ledger
from longturn.dispatch import DispatchRouter, PeerGoneError
from longturn.errors import LongturnError
from longturn.metrics import Metrics

logger = logging.getLogger(__name__)
T = TypeVar("T")

_ROUND_S = 0.05
_CLOSE_TIMEOUT_S = 30.0


class DispatcherStoppedError(LongturnError):
    """The dispatcher ended; its own error is the cause."""

    reason = "DISPATCHER_STOPPED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a call may use, inside the dispatcher's thread and transaction."""

    ledger: Ledger
    assigner: Assigner
    address: str


@dataclass(slots=True, kw_only=True)
class _Call(Generic[T]):
    run: Callable[[Desk], T]
    future: Future[T]
    result: T | None = None


class Dispatcher:
    """Runs the dispatch side of the learner until closed."""

    def __init__(
        self,
        *,
        open_ledger: Callable[[], Ledger],
        open_router: Callable[[], DispatchRouter],
        make_assigner: Callable[[Ledger], Assigner],
        metrics: Metrics,
    ) -> None:
        """Start the thread and wait until it listens; raises what kept it from listening."""
        self._open_ledger = open_ledger
        self._open_router = open_router
        self._make_assigner = make_assigner
        self._metrics = metrics
        # The training thread waits for every call, so more than a few can never be pending.
        self._calls: queue.Queue[_Call[object]] = queue.Queue(maxsize=64)
        self.changed = threading.Event()
        """Set after every round in which a pool said something."""
        self._closing = threading.Event()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._router: DispatchRouter | None = None
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._thread.start()
        try:
            self.address = self.call(lambda desk: desk.address)
        except DispatcherStoppedError as error:
            if isinstance(error.__cause__, LongturnError):
                raise error.__cause__ from None
            raise

    def call(self, run: Callable[[Desk], T]) -> T:
        """Run a function in the dispatcher's transaction and return its result after the commit."""
        call: _Call[T] = _Call(run=run, future=Future())
        self._calls.put(call)  # type: ignore[arg-type]  # the queue mixes result types
        self._wake()
        while not self._stopped.is_set():
            try:
                return call.future.result(timeout=0.5)
            except TimeoutError:
                continue
        if call.future.done():
            return call.future.result()
        raise DispatcherStoppedError(f"the dispatcher stopped: {self._error or 'it was closed'}") from self._error

    def close(self) -> None:
        """End the thread after its current round."""
        self._closing.set()
        self._wake()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _wake(self) -> None:
        # Once: the thread may end between two reads. It may also have closed the router, which then ignores the wake.
        router = self._router
        if router is not None:
            router.wake()

    def _run(self) -> None:
        try:
            with self._open_ledger() as ledger, self._open_router() as router:
                self._router = router
                desk = Desk(ledger=ledger, assigner=self._make_assigner(ledger), address=router.address)
                with ledger.transaction():
                    desk.assigner.adopt_held_groups()
                while not self._closing.is_set():
                    self._round(desk, router)
        except BaseException as error:  # noqa: BLE001  # handed to the training thread, which raises it
            self._error = error
        finally:
            self._router = None
            self._stopped.set()
            self.changed.set()

    def _round(self, desk: Desk, router: DispatchRouter) -> None:
        messages = router.receive(_ROUND_S)
        calls = self._pending_calls()
        with desk.ledger.transaction():
            for message in messages:
                desk.assigner.handle(message)
            for call in calls:
                call.result = call.run(desk)
            desk.assigner.tick()
        for peer, body in desk.assigner.take_outbox():
            try:
                router.send(peer, body)
            except PeerGoneError:
                # The pool asks again, or is declared silent, by its own clock.
                self._metrics.count("learner/dispatch/undelivered")
        for call in calls:
            call.future.set_result(call.result)
        if messages:
            self.changed.set()
        self._metrics.gauge("learner/dispatch/malformed_frames", router.num_malformed)

    def _pending_calls(self) -> list[_Call[object]]:
        calls: list[_Call[object]] = []
        while True:
            try:
                calls.append(self._calls.get_nowait())
            except queue.Empty:
                return calls
