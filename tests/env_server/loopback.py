"""A real server on loopback, its workers included, and a small client for it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from env_server.config import EnvServerConfig
from env_server.server import EnvServer, serving
from longturn.codec import knob_to_proto
from longturn.metrics import Metrics
from longturn.records import KnobValue
from longturn.status import StatusBoard
from longturn.v1 import environment_pb2, environment_pb2_grpc
from tests.support.waiting import until

FAULTY = "env_server.environments.faulty:FaultyEnvironment"
ODD = "tests.env_server.odd_environments"


@dataclass
class Player:
    """One started episode, played over unary calls."""

    stub: environment_pb2_grpc.EnvironmentServiceAsyncStub
    episode_id: str
    token: str
    first: environment_pb2.StepResult
    turn_index: int = 0

    def request(self, action: str, turn_index: int | None = None) -> environment_pb2.StepRequest:
        """The step request of a turn; the next one unless said otherwise."""
        return environment_pb2.StepRequest(
            episode_id=self.episode_id,
            episode_token=self.token,
            turn_index=self.turn_index if turn_index is None else turn_index,
            action=action,
        )

    async def step(self, action: str = "amber", turn_index: int | None = None) -> environment_pb2.StepResult:
        """Take a step and follow its turn index."""
        result = (await self.stub.Step(self.request(action, turn_index), timeout=60.0)).result
        self.turn_index = result.turn_index
        return result

    async def get(self, *, with_transcript: bool = False) -> environment_pb2.GetEpisodeResponse:
        """Where the episode stands."""
        request = environment_pb2.GetEpisodeRequest(
            episode_id=self.episode_id, episode_token=self.token, with_transcript=with_transcript
        )
        return await self.stub.GetEpisode(request, timeout=60.0)

    async def end(self, cause: environment_pb2.EndCause.ValueType = environment_pb2.END_CAUSE_CLIENT_REQUEST):
        """End the episode."""
        request = environment_pb2.EndEpisodeRequest(episode_id=self.episode_id, episode_token=self.token, cause=cause)
        return (await self.stub.EndEpisode(request, timeout=60.0)).result


@dataclass
class Client:
    """A channel to the server under test, and the server itself."""

    server: EnvServer
    metrics: Metrics
    stub: environment_pb2_grpc.EnvironmentServiceAsyncStub

    async def start(self, environment: str = "echo", index: int = 0, **options: Any) -> Player:
        """Start an episode; see `start_request` for the options."""
        response = await self.stub.StartEpisode(start_request(environment, index, **options), timeout=60.0)
        return Player(self.stub, response.episode_id, response.episode_token, response.result)


def start_request(
    environment: str = "echo",
    index: int = 0,
    *,
    knobs: Mapping[str, KnobValue] | None = None,
    task_id: str | None = None,
    **fields: Any,
) -> environment_pb2.StartEpisodeRequest:
    """A start request with a fresh request id."""
    request = environment_pb2.StartEpisodeRequest(request_id=uuid.uuid4().hex)
    request.task.environment = environment
    request.task.task_id = task_id or f"{environment}/train/{index:06d}"
    for name, value in (knobs or {}).items():
        request.task.knobs[name].CopyFrom(knob_to_proto(value))
    request.MergeFrom(environment_pb2.StartEpisodeRequest(**fields))
    return request


async def until_in_flight(client: Client, number: int = 1) -> None:
    """Wait until the server has this many calls in flight."""
    await until(lambda: client.server.table.num_in_flight >= number)


@asynccontextmanager
async def loopback(*environments: str, **settings: object) -> AsyncIterator[Client]:
    """A server with one worker, unless the settings say otherwise, and a channel to it."""
    values = {"environments": environments or ("echo",), "port": 0, "num_workers": 1, **settings}
    metrics = Metrics()
    async with serving(
        EnvServerConfig.model_validate(values), metrics=metrics, board=StatusBoard("env_server", metrics)
    ) as server:
        options = [("grpc.max_receive_message_length", 64 * 2**20), ("grpc.max_send_message_length", 64 * 2**20)]
        async with grpc.aio.insecure_channel(server.address, options=options) as channel:
            yield Client(server, metrics, environment_pb2_grpc.EnvironmentServiceStub(channel))


def error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo that every refusal carries."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an AioRpcError has what it asks for
    assert status is not None, error
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


def retry_delay_s(error: grpc.aio.AioRpcError) -> float:
    """The delay of the RetryInfo that a refusal carries."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    return retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
