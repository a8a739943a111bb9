"""Replays a journal inside a worker: verified turn by turn, for rebuilding, forking and transcripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from env_server.stage import Stage, StageError, StartOrder
from longturn.v1 import environment_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOrder:
    """What the server asks a worker to replay."""

    start: StartOrder
    actions: Sequence[str]
    hashes: Sequence[bytes]
    """State hashes of the start and of every action: one more than actions."""

    @classmethod
    def from_json(cls, payload: bytes) -> ReplayOrder:
        """Parse what `to_json` wrote."""
        tree = json.loads(payload)
        return cls(
            start=StartOrder(**tree["start"]),
            actions=tree["actions"],
            hashes=[bytes.fromhex(text) for text in tree["hashes"]],
        )

    def to_json(self) -> bytes:
        """As it crosses the hop."""
        start = json.loads(self.start.to_json())
        hashes = [value.hex() for value in self.hashes]
        return json.dumps({"start": start, "actions": list(self.actions), "hashes": hashes}).encode()


def replay(
    stage: Stage, key: int, order: ReplayOrder, before_turn: Callable[[], None]
) -> environment_pb2.GetEpisodeResponse:
    """Play the journal again under `key` and return every result; raise StageError(EPISODE_LOST) where it differs.

    `before_turn` is called before each action.
    """
    whole = environment_pb2.GetEpisodeResponse(initial=stage.start(key, order.start))
    _compare(whole.initial, order.hashes[0], turn=0)
    episode_return = 0.0
    for index, action in enumerate(order.actions, start=1):
        before_turn()
        result = stage.step(key, action)
        _compare(result, order.hashes[index], turn=index)
        episode_return += result.reward
        result.turn_index, result.episode_return = index, episode_return
        whole.transcript.add(action=action, result=result)
    return whole


def _compare(result: environment_pb2.StepResult, expected: bytes, *, turn: int) -> None:
    if result.state_hash != expected:
        raise StageError(
            "EPISODE_LOST",
            f"the replay differs from the journal at turn {turn}: state hash {result.state_hash.hex()},"
            f" expected {expected.hex()}",
            turn_index=str(turn),
        )
