"""Both ends of the dispatch socket: a ROUTER for the learner, a DEALER for an actor pool.

Invariant: a socket belongs to the thread that opened it. Every method but `DispatchRouter.wake` checks that; ZMQ
sockets shared between threads interleave their frames.

Every message is one frame that holds one `dispatch_pb2.Envelope`; nothing else is ever decoded. Delivery is at least
once: the ROUTER refuses to queue for a peer that is gone (ROUTER_MANDATORY), both queues are bounded, and identities
inside the messages make repeats harmless. Addresses are `ipc://PATH` or `tcp://127.0.0.1:PORT`; anything that leaves
the machine is refused, since frames are neither encrypted nor authenticated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import zmq
import zmq.asyncio
from google.protobuf.message import DecodeError

from longturn.addresses import IPC_PATH_LIMIT_BYTES, is_loopback
from longturn.errors import ConfigError, LongturnError, UnreachableError
from longturn.v1 import dispatch_pb2

logger = logging.getLogger(__name__)

_MAX_IDENTITY_BYTES = 255
_LONGEST_POLL_S = 60.0

Body = (
    dispatch_pb2.Hello
    | dispatch_pb2.Welcome
    | dispatch_pb2.GroupRequest
    | dispatch_pb2.GroupAssignment
    | dispatch_pb2.SubmitTrajectory
    | dispatch_pb2.Ack
    | dispatch_pb2.GroupFailed
    | dispatch_pb2.PolicyAnnouncement
    | dispatch_pb2.Heartbeat
    | dispatch_pb2.EndOfRun
    | dispatch_pb2.Goodbye
    | dispatch_pb2.Refusal
)

_FIELD_BY_TYPE: dict[type[object], str] = {
    dispatch_pb2.Hello: "hello",
    dispatch_pb2.Welcome: "welcome",
    dispatch_pb2.GroupRequest: "group_request",
    dispatch_pb2.GroupAssignment: "group_assignment",
    dispatch_pb2.SubmitTrajectory: "submit_trajectory",
    dispatch_pb2.Ack: "ack",
    dispatch_pb2.GroupFailed: "group_failed",
    dispatch_pb2.PolicyAnnouncement: "policy_announcement",
    dispatch_pb2.Heartbeat: "heartbeat",
    dispatch_pb2.EndOfRun: "end_of_run",
    dispatch_pb2.Goodbye: "goodbye",
    dispatch_pb2.Refusal: "refusal",
}

PROTOCOL_VERSION = "1"
"""What Hello and Welcome carry; peers with another one are refused."""


class PeerGoneError(LongturnError):
    """The peer is not connected, or its queue stayed full: the message was not queued."""

    reason = "PEER_GONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """What a dispatch socket may hold."""

    max_message_bytes: int = 64 * 2**20
    """A peer that sends a longer frame is disconnected."""
    queue_messages: int = 1024
    """Most frames waiting per peer and direction; a full queue is back-pressure."""

    def __post_init__(self) -> None:
        if self.max_message_bytes < 1024 or self.queue_messages < 1:
            raise ValueError(f"socket limits are too small: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message and the peer that sent it; answer with `DispatchRouter.send(peer, ...)`."""

    peer: bytes
    body: Body
    num_bytes: int


def check_address(address: str) -> None:
    """Raise ConfigError unless the address is an ipc path of usable length or a loopback tcp address."""
    scheme, _, rest = address.partition("://")
    if scheme == "ipc" and rest:
        if len(os.fsencode(rest)) > IPC_PATH_LIMIT_BYTES:
            raise ConfigError(
                f"dispatch.address: the path {rest!r} is longer than the {IPC_PATH_LIMIT_BYTES} bytes of a socket "
                "file's name; use a shorter run folder or tcp://127.0.0.1:PORT"
            )
        return
    if scheme != "tcp" or ":" not in rest:
        raise ConfigError(f"dispatch.address must be ipc://PATH or tcp://127.0.0.1:PORT, got {address!r}")
    if not is_loopback(rest.rpartition(":")[0]):
        raise ConfigError(
            f"dispatch.address {address!r} leaves this machine, which needs CURVE keys, and this version has no CURVE; "
            "use ipc://PATH, tcp://127.0.0.1:PORT, or an SSH tunnel to a loopback port"
        )


def wrap(body: Body) -> bytes:
    """The frame of one message."""
    envelope = dispatch_pb2.Envelope()
    getattr(envelope, _FIELD_BY_TYPE[type(body)]).CopyFrom(body)
    # An empty message leaves its field unset unless it is marked.
    getattr(envelope, _FIELD_BY_TYPE[type(body)]).SetInParent()
    return envelope.SerializeToString()


def unwrap(frame: bytes) -> Body | None:
    """The message of one frame; None if the bytes are no Envelope with a body that this version knows."""
    try:
        envelope = dispatch_pb2.Envelope.FromString(frame)
    except DecodeError:
        return None
    kind = envelope.WhichOneof("body")
    return None if kind is None else getattr(envelope, kind)


class _Owned:
    """Refuses calls from any thread but the one that opened the socket."""

    def __init__(self) -> None:
        self._owner = threading.get_ident()

    def _check_owner(self) -> None:
        if threading.get_ident() != self._owner:
            raise RuntimeError("a dispatch socket was used from a thread that does not own it")


class DispatchRouter(_Owned):
    """The learner's end. Open it in the thread that will use it; `wake` is the only call for other threads."""

    def __init__(self, address: str, *, limits: SocketLimits | None = None) -> None:
        """Bind; raise ConfigError for an address that is refused or taken. Port 0 takes a free one: see `address`."""
        super().__init__()
        check_address(address)
        limits = limits or SocketLimits()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        _set_limits(self._socket, limits)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A pool that reconnects keeps its identity; the new connection takes over.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_lock = threading.Lock()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        try:
            with _private_files(address):
                self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"dispatch.address {address!r} cannot be bound: {error}; choose another one") from error
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_reader, zmq.POLLIN)
        self.num_malformed = 0
        """Frames dropped because they were no Envelope."""

    @property
    def address(self) -> str:
        """Where it listens, with the port that was taken."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def wake(self) -> None:
        """End a running or the next `receive` early; nothing once it is closed. Safe from any thread."""
        # A full pipe means a wake is already pending.
        with self._wake_lock, contextlib.suppress(BlockingIOError):
            if self._wake_writer.fileno() >= 0:
                self._wake_writer.send(b"\0")

    def receive(self, timeout_s: float, *, max_messages: int = 64) -> list[Received]:
        """Wait for a message, at most `timeout_s` or until woken; then take what is there, at most `max_messages`."""
        self._check_owner()
        self._poller.poll(int(timeout_s * 1000))
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        received: list[Received] = []
        while len(received) < max_messages:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            body = unwrap(frames[1]) if len(frames) == 2 else None
            if body is None:
                self.num_malformed += 1
                _tell_malformed(self.num_malformed, frames)
                continue
            received.append(Received(peer=frames[0], body=body, num_bytes=len(frames[1])))
        return received

    def send(self, peer: bytes, body: Body) -> None:
        """Queue a message for a peer without waiting; raise PeerGoneError if it is gone or its queue is full."""
        self._check_owner()
        try:
            self._socket.send_multipart((peer, wrap(body)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise PeerGoneError(f"{peer!r} is not reachable: {error}") from error
            raise

    def close(self, *, linger_s: float = 0.0) -> None:
        """Close the socket; give queued messages `linger_s` to leave."""
        self._check_owner()
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()
        self._wake_reader.close()
        # Another thread may be about to write to it; its number may be another file's a moment later.
        with self._wake_lock:
            self._wake_writer.close()

    def __enter__(self) -> DispatchRouter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DispatchDealer(_Owned):
    """A pool's end, for one asyncio loop.

    ZMQ reconnects by itself and delivers what was queued meanwhile. A learner that does not know the sender, because it
    restarted, answers any message with Refusal(reason=HELLO_FIRST): say Hello again, then send unacknowledged
    trajectories again. Messages may arrive twice; silence longer than a few heartbeats means that the learner is away.
    """

    def __init__(
        self,
        address: str,
        *,
        pool_id: str,
        incarnation: str,
        limits: SocketLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect in the background; raise ConfigError for a refused address."""
        super().__init__()
        check_address(address)
        self.address = address
        identity = f"{pool_id}/{incarnation}".encode()
        if len(identity) > _MAX_IDENTITY_BYTES:
            raise ConfigError(f"pool_id {pool_id!r} is too long")
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _set_limits(self._socket, limits or SocketLimits())
        self._socket.setsockopt(zmq.IDENTITY, identity)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self._socket.connect(address)
        self._clock = clock
        self._last_received_s = clock()
        self.num_malformed = 0
        """Frames dropped because they were no Envelope."""

    @property
    def silence_s(self) -> float:
        """Seconds since the last message from the learner, or since the start."""
        return self._clock() - self._last_received_s

    async def send(self, body: Body, *, timeout_s: float = 30.0) -> None:
        """Queue a message; a full queue waits. Raise UnreachableError if it stays full for `timeout_s`."""
        self._check_owner()
        try:
            async with asyncio.timeout(timeout_s):
                await self._socket.send(wrap(body))
        except TimeoutError as error:
            raise UnreachableError(
                f"the learner at {self.address} took no message for {timeout_s:g} s; start it with `longturn learn`"
            ) from error

    async def receive(self, *, timeout_s: float | None = None) -> Body | None:
        """The next message; None after `timeout_s` without one (never, if None). Cancelling it loses no message."""
        self._check_owner()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # A receive that is cancelled in the very moment a frame arrives would swallow the frame; a poll swallows
            # nothing, and a receive with NOBLOCK is done before it could be cancelled.
            wait_s = _LONGEST_POLL_S if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            ready = await self._socket.poll(math.ceil(wait_s * 1000))
            body = await self._take() if ready else None
            if body is not None or (not ready and deadline_s is not None):
                return body

    async def _take(self) -> Body | None:
        try:
            frame = await self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        body = unwrap(frame)
        if body is None:
            self.num_malformed += 1
            _tell_malformed(self.num_malformed, [frame])
        else:
            self._last_received_s = self._clock()
        return body

    def close(self, *, linger_s: float = 1.0) -> None:
        """Close the socket; give queued messages (a Goodbye) `linger_s` to leave."""
        self._check_owner()
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()

    async def __aenter__(self) -> DispatchDealer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tell_malformed(number: int, frames: Sequence[bytes]) -> None:
    """Say that something else than this protocol arrives; the first, second, fourth, ... time: it may be a flood."""
    if number & (number - 1) == 0:
        logger.warning(
            "malformed frame dropped; only longturn may speak to this address",
            extra={"num_frames": len(frames), "num_bytes": sum(map(len, frames)), "dropped_so_far": number},
        )


def _set_limits(handle: zmq.Socket[bytes] | zmq.asyncio.Socket, limits: SocketLimits) -> None:
    handle.setsockopt(zmq.MAXMSGSIZE, limits.max_message_bytes)
    handle.setsockopt(zmq.SNDHWM, limits.queue_messages)
    handle.setsockopt(zmq.RCVHWM, limits.queue_messages)
    handle.setsockopt(zmq.LINGER, 0)


@contextlib.contextmanager
def _private_files(address: str) -> Iterator[None]:
    """Make sure that the folder of a socket file exists, and that the file is its owner's alone."""
    if not address.startswith("ipc://"):
        yield
        return
    Path(address.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True)
    previous = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(previous)
