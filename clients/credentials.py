"""What a client proves to an env server: bearer token, client certificate; and which servers it trusts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc

from clients.config import EnvClientConfig
from longturn.errors import ConfigError

Metadata = tuple[tuple[str, str], ...]


class Credentials:
    """Channels and call metadata of one client. No message repeats a token."""

    def __init__(self, config: EnvClientConfig) -> None:
        self._config = config

    def metadata(self) -> Metadata:
        """Metadata of a call or stream that begins now; a token file is read anew. ConfigError if it holds no token."""
        token = self._config.token.get_secret_value()
        if self._config.token_file is not None:
            token = _read_token(self._config.token_file)
        return (("authorization", f"Bearer {token}"),) if token else ()

    def channel(self, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        """A channel to the server's address; ConfigError names the file that cannot be used."""
        tls = self._config.tls
        if not tls.is_used:
            return grpc.aio.insecure_channel(self._config.address, options=options)
        name = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_read(tls.ca, "ca"),
            private_key=_read(tls.key, "key"),
            certificate_chain=_read(tls.certificate, "certificate"),
        )
        return grpc.aio.secure_channel(self._config.address, credentials, options=(*options, *name))


def _read(path: Path | None, setting: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; change env_server.tls.{setting}") from error


def _read_token(path: Path) -> str:
    """The first token of a file; a name before it is the server's affair."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}; change env_server.token_file") from None
    for line in lines:
        words = line.split()
        if words and not words[0].startswith("#"):
            return words[-1]
    raise ConfigError(f"{path} holds no token; write one into it, or unset env_server.token_file")
