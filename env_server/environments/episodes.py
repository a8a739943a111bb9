"""Environments whose instance hands every call to the one episode that it plays."""

from abc import ABC, abstractmethod

from env_server.environment import Environment, Transition


class Episode(ABC):
    """A task from its first observation to its end."""

    @abstractmethod
    def step(self, action: str) -> Transition:
        """As in `Environment`."""

    @abstractmethod
    def oracle(self) -> str | None:
        """As in `Environment`."""

    def close(self) -> None:  # noqa: B027 - a hook, not a duty
        """Free what the last reference to it does not free."""


class EpisodicEnvironment(Environment):
    """Plays the episode that `reset` put into `_episode`."""

    def __init__(self) -> None:
        self._episode: Episode | None = None

    def step(self, action: str) -> Transition:
        if self._episode is None:
            raise RuntimeError("step before reset")
        return self._episode.step(action)

    def oracle(self) -> str | None:
        return None if self._episode is None else self._episode.oracle()

    def close(self) -> None:
        if self._episode is not None:
            self._episode.close()
            self._episode = None
