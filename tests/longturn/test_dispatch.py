"""Both ends of the dispatch socket over real ZMQ."""

from __future__ import annotations

import asyncio
import pickle
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from longturn.dispatch import DispatchDealer, DispatchRouter, PeerGoneError, SocketLimits, check_address, unwrap, wrap
from longturn.errors import ConfigError
from longturn.v1 import dispatch_pb2


@pytest.fixture
def router() -> Iterator[DispatchRouter]:
    with DispatchRouter("tcp://127.0.0.1:0", limits=SocketLimits(max_message_bytes=4096)) as router:
        yield router


def send_raw(address: str, *frames: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        socket.send_multipart(frames)
        socket.close(linger=1000)


async def exchange(router: DispatchRouter) -> tuple[list[object], object]:
    async with DispatchDealer(router.address, pool_id="pool", incarnation="one") as dealer:
        await dealer.send(dispatch_pb2.Hello(pool_id="pool"))
        received = router.receive(5.0)
        router.send(received[0].peer, dispatch_pb2.Welcome(run_id="run"))
        return [(message.peer, message.body) for message in received], await dealer.receive(timeout_s=5.0)


def test_a_hello_arrives_and_its_welcome_returns(router: DispatchRouter) -> None:
    received, answer = asyncio.run(exchange(router))
    assert received == [(b"pool/one", dispatch_pb2.Hello(pool_id="pool"))]
    assert answer == dispatch_pb2.Welcome(run_id="run")


def test_every_message_survives_its_envelope_even_when_empty() -> None:
    for field in dispatch_pb2.Envelope.DESCRIPTOR.fields:
        assert field.message_type is not None
        body = getattr(dispatch_pb2, field.message_type.name)()
        assert unwrap(wrap(body)) == body


def test_a_socket_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "dispatch.sock"
    with DispatchRouter(f"ipc://{path}") as router:
        asyncio.run(exchange(router))
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_sending_to_a_peer_that_is_gone_is_an_error(router: DispatchRouter) -> None:
    with pytest.raises(PeerGoneError):
        router.send(b"nobody", dispatch_pb2.EndOfRun())


def test_garbage_is_dropped_counted_and_told_without_a_flood(
    router: DispatchRouter, caplog: pytest.LogCaptureFixture
) -> None:
    send_raw(router.address, pickle.dumps({"a": 1}))
    send_raw(router.address, b"two", b"frames")
    send_raw(router.address, b"")
    while router.num_malformed < 3:
        assert router.receive(5.0) == []
    told = [vars(record)["dropped_so_far"] for record in caplog.records if "malformed frame" in record.message]
    assert told == [1, 2]


def test_an_oversized_frame_does_not_arrive_and_the_socket_lives(router: DispatchRouter) -> None:
    send_raw(router.address, wrap(dispatch_pb2.SubmitTrajectory(trajectory=bytes(10_000))))
    received, answer = asyncio.run(exchange(router))
    assert [type(body) for _, body in received] == [dispatch_pb2.Hello]  # type: ignore[misc]
    assert isinstance(answer, dispatch_pb2.Welcome)


def test_another_thread_may_wake_but_not_use_the_socket(router: DispatchRouter) -> None:
    errors: list[BaseException] = []

    def intrude() -> None:
        router.wake()
        try:
            router.receive(0.0)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    assert router.receive(60.0) == []
    thread.join()
    assert len(errors) == 1


def test_a_pool_that_started_before_the_learner_gets_through(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/dispatch.sock"

    async def main() -> object:
        async with DispatchDealer(address, pool_id="early", incarnation="one") as dealer:
            await dealer.send(dispatch_pb2.Hello(pool_id="early"))
            with DispatchRouter(address) as router:
                return router.receive(10.0)[0].body

    assert asyncio.run(main()) == dispatch_pb2.Hello(pool_id="early")


def test_receives_that_time_out_lose_no_message(router: DispatchRouter) -> None:
    async def main() -> list[int]:
        async with DispatchDealer(router.address, pool_id="p", incarnation="i") as end:
            await end.send(dispatch_pb2.Hello(pool_id="p"))
            peer = router.receive(5.0)[0].peer
            found: list[int] = []
            sent = 0
            while len(found) < 500:
                if sent < 500:
                    router.send(peer, dispatch_pb2.Heartbeat(policy_version=sent))
                    sent += 1
                body = await end.receive(timeout_s=0.0002 * (sent % 3))
                if isinstance(body, dispatch_pb2.Heartbeat):
                    found.append(body.policy_version)
            return found

    assert asyncio.run(main()) == list(range(500))


def test_a_dealer_without_an_answer_reports_silence() -> None:
    async def main() -> tuple[object, float]:
        async with DispatchDealer(
            "tcp://127.0.0.1:9", pool_id="p", incarnation="i", clock=iter([1.0, 4.0]).__next__
        ) as end:
            return await end.receive(timeout_s=0.01), end.silence_s

    assert asyncio.run(main()) == (None, 3.0)


@pytest.mark.parametrize(
    "address",
    ["tcp://0.0.0.0:5000", "tcp://10.1.2.3:5000", "tcp://*:5000", "tcp://host", "udp://127.0.0.1:1", "ipc://"],
)
def test_an_address_off_loopback_or_malformed_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"dispatch\.address"):
        check_address(address)


def test_a_taken_port_and_a_long_path_name_the_setting(router: DispatchRouter, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dispatch\.address"):
        DispatchRouter(router.address)
    with pytest.raises(ConfigError, match="shorter run folder"):
        DispatchRouter(f"ipc://{tmp_path}/{'x' * 120}")
