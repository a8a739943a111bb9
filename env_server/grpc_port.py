"""The gRPC server: its port, its options and the services on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from env_server.access import Access, AccessInterceptor
from env_server.config import EnvServerConfig
from env_server.decoding import add_service
from env_server.service import EnvironmentService
from env_server.tls import server_credentials
from longturn.errors import ConfigError
from longturn.extras import how_to_install
from longturn.status import StatusBoard, StatusServicer
from longturn.v1 import environment_pb2, status_pb2

SERVICE = environment_pb2.DESCRIPTOR.services_by_name["EnvironmentService"]
STATUS_SERVICE = status_pb2.DESCRIPTOR.services_by_name["StatusService"]
CHANNELZ = "grpc.channelz.v1.Channelz"
PENDING_CALLS = 65_536
"""gRPC cancels calls at random beyond its default of 1,000 waiting ones."""


class Health(Protocol):
    """The standard health service."""

    async def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Set a service's status."""
        ...

    async def enter_graceful_shutdown(self) -> None:
        """Set every service to NOT_SERVING for good."""
        ...


def bind(
    config: EnvServerConfig, access: Access, tracers: Sequence[grpc.aio.ServerInterceptor] = ()
) -> tuple[grpc.aio.Server, str]:
    """A server that is not started yet, and its address; ConfigError if it cannot be had."""
    guards = [AccessInterceptor(access)] if access.demands_token else []
    server = grpc.aio.server(
        interceptors=[*guards, *tracers],
        options=[
            ("grpc.enable_channelz", int(config.channelz)),
            # Actions between one and two limits are refused by this server, with the setting's name; more by gRPC.
            ("grpc.max_receive_message_length", 2 * config.max_message_bytes),
            ("grpc.max_send_message_length", config.max_message_bytes),
            ("grpc.server.max_pending_requests", PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
            ("grpc.max_concurrent_streams", PENDING_CALLS),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", round(config.keepalive_s * 1000) or 2**31 - 1),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ],
    )
    host = f"[{config.host}]" if ":" in config.host else config.host
    credentials = server_credentials(config.tls) if config.tls.certificate is not None else None
    try:
        if credentials is not None:
            port = server.add_secure_port(f"{host}:{config.port}", credentials)
        else:
            port = server.add_insecure_port(f"{host}:{config.port}")
    except RuntimeError as error:
        raise ConfigError(
            f"cannot bind {host}:{config.port}: the port is in use or the address is not this machine's;"
            " change it with --port (env_server.port; 0 chooses a free one), or change env_server.host"
        ) from error
    return server, f"{host}:{port}"


async def register(
    grpc_server: grpc.aio.Server, service: EnvironmentService, board: StatusBoard, config: EnvServerConfig
) -> Health:
    """Put all services on the server; returns the health service, where everything serves."""
    add_service(grpc_server, SERVICE, service)
    add_service(grpc_server, STATUS_SERVICE, StatusServicer(board))
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack it
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, grpc_server)
    names = (SERVICE.full_name, STATUS_SERVICE.full_name)
    for name in ("", *names):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    if config.channelz:
        _add_channelz(grpc_server)
    if config.reflection:
        all_names = (*names, health.SERVICE_NAME, reflection.SERVICE_NAME, *([CHANNELZ] if config.channelz else []))
        reflection.enable_server_reflection(all_names, grpc_server)
    return health_servicer


def _add_channelz(grpc_server: grpc.aio.Server) -> None:
    try:
        from grpc_channelz.v1 import channelz  # an optional extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"env_server.channelz needs {error.name}; {how_to_install('channelz')}") from error
    channelz.add_channelz_servicer(grpc_server)
