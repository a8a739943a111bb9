"""Requests, actions and knobs that nobody would send on purpose. LONGTURN_FUZZ_INPUTS sets the inputs per test.

LONGTURN_FUZZ_INPUTS=100000 python -m pytest tests/env_server/test_fuzz.py --timeout 0
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from clients.commands import _pairs, _values
from env_server.catalog import check_knobs
from env_server.environment import EnvironmentSpec, KnobSpec
from env_server.environments.bandit import BanditEnvironment
from env_server.environments.echo import EchoEnvironment
from env_server.environments.faulty import FaultyEnvironment
from env_server.environments.frozen_lake import FrozenLakeEnvironment
from env_server.environments.sokoban import SokobanEnvironment
from env_server.refusals import RefusedError
from longturn.codec import knob_from_proto, knob_to_proto
from longturn.errors import ConfigError
from longturn.records import KnobValue
from longturn.v1 import environment_pb2
from tests.env_server.loopback import Client, Player, loopback, start_request
from tests.env_server.streams import Stream

BATCH = 50
NUM_EXAMPLES = max(1, int(os.environ.get("LONGTURN_FUZZ_INPUTS", "2000")) // BATCH)
SERVICE = environment_pb2.DESCRIPTOR.services_by_name["EnvironmentService"]
UNARY = {method.name: GetMessageClass(method.input_type) for method in SERVICE.methods if not method.client_streaming}
NEVER = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}
SPECS = [
    environment.spec
    for environment in (
        BanditEnvironment,
        EchoEnvironment,
        FaultyEnvironment,
        FrozenLakeEnvironment,
        SokobanEnvironment,
    )
]
fuzzed = settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),  # the server remembers: what is shrunk would fail for another reason
    suppress_health_check=list(HealthCheck),
)


class Target:
    """A server that all inputs of a test go to, and its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._context = loopback("echo", max_episodes=1_000_000)
        self.client: Client = self.loop.run_until_complete(self._context.__aenter__())
        self.channel = self.loop.run_until_complete(self._connect())
        self.worker_pids = [worker.pid for worker in self.client.server.pool.workers]
        self.player = self.loop.run_until_complete(self._start())

    async def _connect(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.client.server.address)  # belongs to the loop that runs here

    async def _start(self, index: int = 0) -> Player:
        return await self.client.start(index=index, knobs={"horizon": 1_000_000}, max_turns=1_000_000)

    async def send(self, method: str, raw: bytes) -> grpc.StatusCode:
        """A unary call with these bytes; its status."""
        call = self.channel.unary_unary(f"/{SERVICE.full_name}/{method}", request_serializer=bytes)
        return await call(raw, timeout=600.0).code()  # type: ignore[call-arg,return-value]

    def close(self) -> None:
        """Make sure that nothing broke, and stop."""
        self.loop.run_until_complete(self._finish())
        self.loop.close()

    async def _finish(self) -> None:
        assert (await (await self._start()).step()).turn_index == 1
        assert [worker.pid for worker in self.client.server.pool.workers] == self.worker_pids
        await self.channel.close()
        await self._context.__aexit__(None, None, None)


@pytest.fixture
def target(caplog: pytest.LogCaptureFixture) -> Iterator[Target]:
    """A fresh server; nothing in its log may be a traceback."""
    caplog.set_level(logging.WARNING)
    target = Target()
    yield target
    target.close()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def _valid_request(method: str, player: Player) -> bytes:
    """A request that makes sense, for bytes to be changed in."""
    names = {"episode_id": player.episode_id, "episode_token": player.token}
    known: dict[str, object] = {
        "ListTasks": environment_pb2.ListTasksRequest(environment="echo", split="train", page_size=3),
        "StartEpisode": start_request(seed=7, max_turns=9, with_oracle=True, client_id="fuzz"),
        "Step": player.request("amber"),
        "StepBatch": environment_pb2.StepBatchRequest(steps=[player.request("amber")] * 2, min_ready=1),
        "GetEpisode": environment_pb2.GetEpisodeRequest(**names, with_transcript=True),
        "ForkEpisode": environment_pb2.ForkEpisodeRequest(**names, request_id="f" * 32, at_turn=0),
        "KeepAlive": environment_pb2.KeepAliveRequest(episodes=[environment_pb2.EpisodeReference(**names)]),
        "EndEpisode": environment_pb2.EndEpisodeRequest(episode_id=player.episode_id, episode_token="x", cause=6),
    }
    message = known.get(method) or UNARY[method]()
    return message.SerializeToString()  # type: ignore[attr-defined]


def _changed(raw: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """The bytes with parts cut out and others put in."""
    for position, num_cut, put_in in edits:
        at = position % (len(raw) + 1)
        raw = raw[:at] + put_in + raw[at + num_cut :]
    return raw


EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4)
INPUTS = st.lists(
    st.tuples(st.sampled_from(sorted(UNARY)), st.one_of(EDITS, st.binary(max_size=300))),
    min_size=BATCH,
    max_size=BATCH,
)


@fuzzed
@given(inputs=INPUTS)
def test_any_bytes_as_a_request_get_a_proper_status(target: Target, inputs: list[tuple[str, object]]) -> None:
    async def send_all() -> list[grpc.StatusCode]:
        requests = [
            (method, change if isinstance(change, bytes) else _changed(_valid_request(method, target.player), change))
            for method, change in inputs
        ]
        return await asyncio.gather(*(target.send(method, raw) for method, raw in requests))  # type: ignore[arg-type]

    codes = target.loop.run_until_complete(send_all())
    assert not set(codes) & NEVER


@fuzzed
@given(calls=st.lists(st.one_of(EDITS, st.binary(max_size=300)), min_size=BATCH, max_size=BATCH))
def test_any_bytes_as_a_message_of_a_stream_are_answered_or_end_it(target: Target, calls: list[object]) -> None:
    step = environment_pb2.PlayCall(call_id=1, step=target.player.request("amber"))
    valid = environment_pb2.PlayRequest(calls=[step, step]).SerializeToString()

    async def play(raw: bytes) -> grpc.StatusCode:
        async def messages() -> AsyncIterator[bytes]:
            yield raw

        method = target.channel.stream_stream(f"/{SERVICE.full_name}/Play", request_serializer=bytes)
        call = method(messages(), timeout=600.0)
        with contextlib.suppress(grpc.aio.AioRpcError):  # whose code is looked at next
            async for _ in call:
                continue
        return await call.code()

    async def play_all() -> list[grpc.StatusCode]:
        raws = [change if isinstance(change, bytes) else _changed(valid, change) for change in calls]  # type: ignore[arg-type]
        return await asyncio.gather(*map(play, raws))

    codes = target.loop.run_until_complete(play_all())
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}


ACTIONS = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=st.characters(categories=("Cc", "Cf", "Co", "Zl", "Zp", "Mn")), max_size=50),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=20), st.integers(1, 5000)),
)


@fuzzed
@given(actions=st.lists(ACTIONS, min_size=BATCH, max_size=BATCH))
@example(actions=["\0", "\r\n", "\ufeff", "\U0010ffff", "\u202e" * 1000] * (BATCH // 5))
def test_any_text_is_an_action_and_counts_as_one_turn(target: Target, actions: list[str]) -> None:
    async def play_all() -> None:
        call = target.client.stub.Play()
        stream = Stream(call)
        steps = [
            environment_pb2.PlayCall(step=target.player.request(action, target.player.turn_index + index))
            for index, action in enumerate(actions)
        ]
        for step in steps:
            reply = await stream.reply((await stream.send(step))[0])
            assert (reply.step.turn_index, reply.step.status) == (
                step.step.turn_index + 1,
                environment_pb2.EPISODE_STATUS_RUNNING,
            )
        target.player.turn_index += len(actions)
        await stream.finish()

    target.loop.run_until_complete(play_all())


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(max_size=20), st.sampled_from([0, 1, 4, 0.5])
)
NAMES = st.one_of(st.sampled_from([knob.name for spec in SPECS for knob in spec.knobs]), st.text(max_size=20))


@fuzzed
@given(
    inputs=st.lists(
        st.tuples(st.sampled_from(SPECS), st.dictionaries(NAMES, VALUES, max_size=4)), min_size=BATCH, max_size=BATCH
    )
)
def test_any_knobs_are_refused_by_name_or_lie_in_their_ranges(
    inputs: list[tuple[EnvironmentSpec, dict[str, KnobValue]]],
) -> None:
    for spec, knobs in inputs:
        sent = {name: knob_from_proto(knob_to_proto(value)) for name, value in knobs.items()}
        try:
            checked = check_knobs(spec, sent)
        except RefusedError as refusal:
            assert refusal.reason == "BAD_KNOB"  # noqa: PT017  # either outcome is right
            assert refusal.metadata["knob"] in knobs  # noqa: PT017
            continue
        by_name = {knob.name: knob for knob in spec.knobs}
        assert set(checked) == set(knobs)
        assert all(_fits(by_name[name], value) for name, value in checked.items())


def _fits(knob: KnobSpec, value: KnobValue) -> bool:
    if knob.kind == "choice":
        return value in knob.choices
    if knob.kind == "bool":
        return isinstance(value, bool)
    is_kind = isinstance(value, int) if knob.kind == "int" else isinstance(value, float)
    low = -math.inf if knob.minimum is None else knob.minimum
    high = math.inf if knob.maximum is None else knob.maximum
    return is_kind and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type,operator]


@fuzzed
@given(texts=st.lists(st.text(max_size=40), max_size=BATCH))
@example(texts=["a=1e999", "a=NaN", "a=[1]", "a=" + "9" * 5000, "a=" + "[" * 5000])
def test_any_text_as_a_knob_on_the_command_line_is_a_value_or_a_clear_error(texts: list[str]) -> None:
    for text in texts:
        try:
            values = _values([text], "--knob")
        except ConfigError as error:
            assert "--knob" in str(error)  # noqa: PT017  # either outcome is right
            continue
        assert set(values) == set(_pairs([text], "--knob"))
        assert all(isinstance(value, bool | int | float | str) for value in values.values())
