"""Bearer tokens that the server accepts, from an environment variable and from a file that may change.

A token is kept as its hash only, and no message repeats one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from longturn.errors import ConfigError

logger = logging.getLogger(__name__)

SHORTEST_TOKEN = 16

Stamp = tuple[int, int, int]


class BearerTokens:
    """Names by token. Raises ConfigError where the configured source holds no token."""

    def __init__(self, *, file: Path | None, variable: str) -> None:
        self._file = file
        self._fixed = _from_variable(variable) if variable else {}
        self._names: Mapping[bytes, str] = self._fixed
        self._stamp: Stamp | None = None
        if file is not None:
            self._stamp = _stamp(file)
            self._names = self._fixed | _from_file(file)

    @property
    def is_demanded(self) -> bool:
        """Whether there is any token to ask for."""
        return bool(self._file or self._fixed)

    def find(self, token: str) -> tuple[bytes, str] | None:
        """Digest and name of a valid token. Takes as long for every token: no comparison ends early."""
        digest = digest_of(token)
        found = None
        for known, name in self._names.items():
            if compare_digest(known, digest):
                found = known, name
        return found

    def is_current(self, digest: bytes) -> bool:
        """Whether a token that was valid once still is."""
        return digest in self._names

    def reread(self) -> bool:
        """Take over a changed file; returns whether the tokens changed. A file that cannot be used changes nothing."""
        if self._file is None:
            return False
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            names = self._fixed | _from_file(self._file)
        except ConfigError as error:
            if self._stamp is not None:
                logger.error("the bearer tokens stay as they are", extra={"reason": str(error)})
            self._stamp = None
            return False
        is_changed = names != self._names
        self._names = names
        if is_changed:
            logger.info("bearer tokens changed", extra={"num_tokens": len(names)})
        return is_changed


def digest_of(token: str) -> bytes:
    """What is kept in a token's place."""
    return sha256(token.encode(errors="replace")).digest()


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(
            f"the token file {path} cannot be read: {error.strerror}; change env_server.token_file"
        ) from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _from_variable(name: str) -> dict[bytes, str]:
    token = os.environ.get(name, "").strip()
    if len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the environment variable {name} holds no token of {SHORTEST_TOKEN} or more characters;"
            " set it, or change env_server.token_variable"
        )
    return {digest_of(token): ""}


def _from_file(path: Path) -> dict[bytes, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the token file {path} cannot be read: {reason}; change env_server.token_file") from None
    names: dict[bytes, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or len(words[-1]) < SHORTEST_TOKEN:
            raise ConfigError(
                f"line {number} of the token file {path} is not `TOKEN` or `NAME TOKEN` with a token of"
                f" {SHORTEST_TOKEN} or more characters"
            )
        names[digest_of(words[-1])] = words[0] if len(words) == 2 else ""
    if not names:
        raise ConfigError(f"the token file {path} holds no token; write one a line, or unset env_server.token_file")
    return names
