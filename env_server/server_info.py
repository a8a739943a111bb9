"""What GetServerInfo answers."""

from __future__ import annotations

from importlib.metadata import version

from google.protobuf import duration_pb2

from env_server.config import EnvServerConfig
from env_server.tokens import new_id
from longturn.protocol import ENVIRONMENT_PROTOCOL_VERSION
from longturn.v1 import environment_pb2

CAPABILITIES = ("play", "step_batch", "fork", "transcript")
STATE_DIR = "state_dir"


def server_info(config: EnvServerConfig) -> environment_pb2.GetServerInfoResponse:
    """The answer of a server that has just started."""
    return environment_pb2.GetServerInfoResponse(
        server_id=new_id(),
        protocol_version=ENVIRONMENT_PROTOCOL_VERSION,
        package_version=version("longturn"),
        capabilities=CAPABILITIES if config.state_dir is None else (*CAPABILITIES, STATE_DIR),
        limits=environment_pb2.ServerLimits(
            max_message_bytes=config.max_message_bytes,
            max_episodes=config.max_episodes,
            max_episodes_per_client=config.max_episodes_per_client,
            max_requests_in_flight=config.max_requests_in_flight,
            lease=_duration(config.lease_s),
            max_episode=_duration(config.max_episode_s),
            step_timeout=_duration(config.limits.step_timeout_s),
            start_timeout=_duration(config.limits.start_timeout_s),
            forbid_privileged=config.forbid_privileged,
            max_rate_per_client=config.max_rate_per_client,
        ),
    )


def _duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromMilliseconds(round(seconds * 1000))
    return duration
