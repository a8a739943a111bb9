"""What an actor pool needs of its learner, and what it must know about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from longturn.dispatch import Body


class LearnerLink(Protocol):
    """A pool's end of the dispatch socket."""

    address: str

    @property
    def silence_s(self) -> float:
        """Seconds since the last message from the learner, or since the start."""
        ...

    async def send(self, body: Body) -> None:
        """Queue a message."""
        ...

    async def receive(self) -> Body | None:
        """The next message."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """What a pool must know besides its collaborators."""

    pool_id: str
    incarnation: str
    num_actors: int
    learner_budget_s: float
    max_unacked: int
    resend_s: float
    tokenizer_hash: str
