"""One episode at an env server, as whoever plays it sees it."""

from __future__ import annotations

from typing import Protocol

from longturn.records import EndCause, StepResult


class EpisodeOwner(Protocol):
    """What an episode needs from its connection."""

    async def step_episode(self, episode: RemoteEpisode, action: str) -> StepResult:
        """See `RemoteEpisode.step`."""
        ...

    async def end_episode(self, episode: RemoteEpisode, cause: EndCause) -> StepResult:
        """See `RemoteEpisode.end`."""
        ...

    async def fork_episode(self, episode: RemoteEpisode, at_turn: int) -> RemoteEpisode:
        """See `RemoteEpisode.fork`."""
        ...

    def abandon_episode(self, episode: RemoteEpisode, cause: EndCause) -> None:
        """See `RemoteEpisode.abandon`."""
        ...


class RemoteEpisode:
    """One episode, owned by whoever holds this object: its lease is kept while the object lives."""

    __slots__ = (
        "__weakref__",
        "_client",
        "data_hash",
        "environment_version",
        "episode_id",
        "episode_token",
        "initial",
        "last",
        "max_turns",
        "turn_index",
    )

    def __init__(
        self,
        client: EpisodeOwner,
        *,
        episode_id: str,
        episode_token: str,
        last: StepResult,
        environment_version: str = "",
        data_hash: str = "",
        max_turns: int = 0,
    ) -> None:
        self._client = client
        self.episode_id = episode_id
        self.episode_token = episode_token
        self.initial = last
        """What the start, or the attach, returned."""
        self.last = last
        self.turn_index = last.turn_index
        self.environment_version = environment_version
        self.data_hash = data_hash
        self.max_turns = max_turns
        """Turn limit in force; 0 if unknown (attached)."""

    async def step(self, action: str) -> StepResult:
        """Apply one action and return what it left behind.

        A bad action is a result with `action_valid` false. Raises EpisodeLostError or EpisodeMovedError if the episode
        is gone, CallRefusedError if the call was wrong, UnreachableError if the server did not answer in time; after
        that the same action may be sent again and is applied once.
        """
        result = await self._client.step_episode(self, action)
        self.last = result
        self.turn_index = result.turn_index
        return result

    async def end(self, cause: EndCause = EndCause.CLIENT_REQUEST) -> StepResult:
        """End the episode and return its final state; an episode that is over keeps its status."""
        self.last = await self._client.end_episode(self, cause)
        return self.last

    async def fork(self, at_turn: int | None = None) -> RemoteEpisode:
        """Start an independent copy of the episode as it was after `at_turn` steps; left out: as it is now.

        Raises CallRefusedError if the environment cannot be forked (`EnvironmentInfo.is_forkable`).
        """
        return await self._client.fork_episode(self, self.turn_index if at_turn is None else at_turn)

    def abandon(self, cause: EndCause) -> None:
        """Ask the server to end the episode without waiting for the answer; for use while being cancelled."""
        self._client.abandon_episode(self, cause)
