"""Transport security of the server: certificates, and the port they are used on.

Files that change are used for new connections at once: certificates rotate without a restart.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from env_server.config import TlsConfig
from longturn.errors import ConfigError

logger = logging.getLogger(__name__)


def server_credentials(config: TlsConfig) -> grpc.ServerCredentials:
    """Credentials for a port; ConfigError names the file that cannot be used."""
    files = _Files(config)
    return grpc.dynamic_ssl_server_credentials(
        files.load(),
        files.reload,  # pyright: ignore[reportArgumentType]  # None keeps what was loaded; the stubs forget it
        require_client_authentication=config.client_ca is not None,
    )


class _Files:
    """Certificate, key and the clients' authority. `reload` is called on gRPC's threads, before each handshake."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._paths = [path for path in (config.certificate, config.key, config.client_ca) if path is not None]
        self._stamps: list[tuple[int, int]] = []

    def load(self) -> grpc.ServerCertificateConfiguration:
        """The files as they are; ConfigError if they are not what they should be."""
        config = self._config
        assert config.certificate is not None
        assert config.key is not None
        stamps = self._read_stamps()
        check_files(config.certificate, config.key, config.client_ca)
        pair = (config.key.read_bytes(), config.certificate.read_bytes())
        authority = config.client_ca.read_bytes() if config.client_ca is not None else None
        self._stamps = stamps
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    def reload(self) -> grpc.ServerCertificateConfiguration | None:
        """The files if they changed; None to go on as before."""
        try:
            stamps = self._read_stamps()
            if stamps == self._stamps:
                return None
            loaded = self.load()
        except (ConfigError, OSError) as error:
            logger.error("the certificates in use stay in use", extra={"reason": str(error)})
            return None
        logger.info("certificates changed", extra={"certificate": str(self._config.certificate)})
        return loaded

    def _read_stamps(self) -> list[tuple[int, int]]:
        try:
            stats = [path.stat() for path in self._paths]
        except OSError as error:
            raise _unusable("tls", Path(error.filename), error.strerror or "") from error
        return [(stat.st_mtime_ns, stat.st_size) for stat in stats]


def check_files(certificate: Path, key: Path, client_ca: Path | None) -> None:
    """ConfigError unless certificate and key belong together and the authority is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise _unusable("certificate and env_server.tls.key", certificate, str(error)) from error
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except OSError as error:
        raise _unusable("client_ca", client_ca or Path(), str(error)) from error


def _no_password() -> str:
    """Keys are read unattended: one that asks for a password is refused."""
    raise ValueError("the key is encrypted")


def _unusable(setting: str, path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} cannot be used for TLS ({why}); change env_server.tls.{setting}")
