"""What a client asked to start or to fork: what fixes the episode, and who may ask for it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from env_server.stage import StartOrder
from longturn.records import Task


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork leaves its source."""

    episode_id: str
    at_turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Compared when a request id repeats; the knobs are in their own types."""

    request_digest: bytes = field(repr=False)
    """Hash of the request id, which is a secret: with it anybody could ask for the episode's token."""
    task: Task
    seed: int
    max_turns: int
    with_progress: bool
    with_oracle: bool
    client_id: str
    """Who counts in limits and logs: the authenticated name where there is one, else what the client calls itself."""
    fork: ForkPoint | None = None

    @property
    def order(self) -> StartOrder:
        """What a worker needs in order to start it."""
        return StartOrder(
            environment=self.task.environment,
            task_id=self.task.task_id,
            seed=self.seed,
            knobs=self.task.knobs,
            with_progress=self.with_progress,
            with_oracle=self.with_oracle,
        )

    def to_tree(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"request_digest": self.request_digest.hex()}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> StartRequest:
        """Build what `to_tree` took apart."""
        values = dict(tree)
        values["request_digest"] = bytes.fromhex(values["request_digest"])
        values["task"] = Task(**values["task"])
        values["fork"] = ForkPoint(**values["fork"]) if values["fork"] else None
        return cls(**values)


def request_digest(request_id: str) -> bytes:
    """What is kept in a request id's place."""
    return sha256(request_id.encode()).digest()
