"""Episode tokens: unguessable, derived from the start's request id, kept only as a hash.

A repeated start must return the same token although the server stores none, so a token is a keyed hash of what the
repeat brings along.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets


class TokenMint:
    """Makes the tokens of one server."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def mint(self, episode_id: str, request_id: str) -> str:
        """The token of an episode; the same for the same arguments."""
        text = f"{episode_id}\0{request_id}".encode()
        return base64.urlsafe_b64encode(hmac.digest(self._secret, text, "sha256")).decode().rstrip("=")


def token_digest(token: str) -> bytes:
    """What is stored in a token's place."""
    return hashlib.sha256(token.encode()).digest()


def new_id() -> str:
    """An opaque unguessable id."""
    return secrets.token_urlsafe(12)
