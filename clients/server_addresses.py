"""The servers that `env_server.address` names."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import socket

from clients.config import EnvClientConfig
from longturn.errors import ConfigError

DNS = "dns:"
MAX_CLIENT_ID = 128


def new_client_id() -> str:
    """A name for this client in the servers' limits and logs."""
    return f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"[:MAX_CLIENT_ID]


async def per_address(config: EnvClientConfig) -> tuple[EnvClientConfig, ...]:
    """The settings towards each server, all under one client id; `dns:NAME:PORT` gives one for each of its addresses.

    A certificate found by name must bear the name. Raises ConfigError if a name has no address.
    """
    client_id = config.client_id or new_client_id()
    configs: dict[str, EnvClientConfig] = {}
    for address in config.addresses:
        name, found = await _look_up(address) if address.startswith(DNS) else ("", [address])
        for one in found:
            own: dict[str, object] = {"address": one, "client_id": client_id}
            if name and config.tls.is_used and not config.tls.server_name:
                own["tls"] = config.tls.model_copy(update={"server_name": name})
            configs[one] = config.model_copy(update=own)
    return tuple(configs.values())


async def _look_up(address: str) -> tuple[str, list[str]]:
    """A name and the addresses, with the port, that it has now."""
    name, _, port = address.removeprefix(DNS).strip("/").rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{address} names no server ({error}); env_server.address takes dns:NAME:PORT") from error
    hosts = sorted({str(sockaddr[0]) for *_, sockaddr in found})
    return name, [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
