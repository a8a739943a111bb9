"""Throw-away certificates, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its own is `pair.certificate`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.pair = KeyPair(folder / f"{name}.pem", folder / f"{name}.key")
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self.pair.key, "-out", self.pair.certificate),
        )

    def issue(self, name: str) -> KeyPair:
        """A certificate with this common name, good for 127.0.0.1 and localhost."""
        pair = KeyPair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", pair.key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.pair.certificate, "-CAkey", self.pair.key, "-days", "2"),
            *("-CAcreateserial", "-extfile", extensions, "-out", pair.certificate),
        )
        return pair


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
