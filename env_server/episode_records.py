"""Episodes and their turns as records of the state log, and back."""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from env_server.start_request import StartRequest

_TURN = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """All of an episode. Messages are serialised StepResults."""

    episode_id: str
    token_digest: bytes
    request: StartRequest
    environment_version: str
    data_hash: str
    max_turns: int
    born_at_s: float
    """On the wall clock: it must mean the same after the machine was started anew."""
    initial: bytes
    """First state, as it was answered."""
    initial_hash: bytes
    turns: bytes
    """Packed as in the journal."""
    turn_index: int
    episode_return: float
    last: bytes
    reply: bytes
    """What the answered step got, which differs from `last` where the episode was cut after it."""
    answered_index: int
    answered_action: str
    payloads: tuple[bytes, ...] | None = None
    """As the journal keeps them."""

    def to_bytes(self) -> bytes:
        """As a payload."""
        tree: dict[str, Any] = {name: _to_json(getattr(self, name)) for name in self.__slots__}
        return json.dumps(tree).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> EpisodeRecord:
        """Build what `to_bytes` took apart."""
        tree = json.loads(payload)
        values = dict(tree)
        values["request"] = StartRequest.from_tree(tree["request"])
        for name in ("token_digest", "initial", "initial_hash", "turns", "last", "reply"):
            values[name] = b64decode(tree[name])
        if tree["payloads"] is not None:
            values["payloads"] = tuple(map(b64decode, tree["payloads"]))
        return cls(**values)


def _to_json(value: object) -> object:
    match value:
        case bytes():
            return b64encode(value).decode()
        case tuple():
            return [_to_json(item) for item in value]
        case StartRequest():
            return value.to_tree()
        case _:
            return value


def pack_turn(turn_index: int, content: bytes) -> bytes:
    """An action, or a result, with the index of its turn."""
    return _TURN.pack(turn_index) + content


def unpack_turn(payload: bytes) -> tuple[int, bytes]:
    """What `pack_turn` joined."""
    return _TURN.unpack_from(payload)[0], payload[_TURN.size :]


def pack_failure(reason: str, message: str) -> bytes:
    """Why an episode failed."""
    return json.dumps([reason, message]).encode()


def unpack_failure(payload: bytes) -> tuple[str, str]:
    """What `pack_failure` joined."""
    reason, message = json.loads(payload)
    return reason, message
