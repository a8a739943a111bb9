"""Messages of a chat as ids, so that what was sampled is never encoded again.

An agent sends the whole conversation with every request. Where its beginning is what was asked and answered before,
the ids of that request and its completion stand for it; only what is new is encoded. An agent that rewrites its history
gets prompts encoded from its text, and its record starts a new row there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clients.rendering.chat import ChatFormat


@dataclass(frozen=True, slots=True)
class Message:
    """One message, without blank edges."""

    role: str
    content: str


class Transcript:
    """All conversations of one episode."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._known: dict[tuple[Message, ...], tuple[int, ...]] = {}

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of these messages and of what invites an answer."""
        num_known, ids = self._longest_known(tuple(messages))
        added = [self._chat.message(message.role, message.content) for message in messages[num_known:]]
        return (*ids, *(index for message in added for index in message), *self._chat.head_ids)

    def remember(self, messages: Sequence[Message], answer: str, ids: tuple[int, ...]) -> None:
        """Keep the ids, prompt included, that these messages with this answer stand for."""
        self._known[(*messages, Message("assistant", answer.strip()))] = ids

    def _longest_known(self, messages: tuple[Message, ...]) -> tuple[int, tuple[int, ...]]:
        for num_known in range(len(messages), 0, -1):
            ids = self._known.get(messages[:num_known])
            if ids is not None:
                return num_known, ids + self._chat.separator_ids
        return 0, self._chat.beginning(has_system=bool(messages) and messages[0].role == "system")
