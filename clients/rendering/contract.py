"""What an actor needs to turn observations into prompts and completions into actions, and what a format of turns gives.

A format knows how one turn looks in ids; a conversation knows what a prompt keeps of the turns before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from clients.rendering.text import TextEncoder
from longturn.records import RenderMode, StepResult, TokenSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A turn's prompt."""

    prompt_ids: Sequence[int]
    """All that the policy is conditioned on; valid until the conversation goes on."""
    recorded_ids: tuple[int, ...]
    """What the record of the turn holds: in append mode what was added, else the whole prompt."""
    was_cut: bool = False
    was_neutralised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCompletion:
    """What a completion says. Spans are tokens that hold some of it, tags excluded; absent where there are none."""

    action: str
    reasoning: str
    format_valid: bool
    reasoning_span: TokenSpan | None
    action_span: TokenSpan | None
    closing_ids: tuple[int, ...]
    """Synthetic tokens that the history needs after the completion to stay well-formed; empty after a proper end."""
    answer: str = ""
    """What stays of it where earlier reasoning is dropped."""


class Conversation(Protocol):
    """The prompts of one episode."""

    def ask(self, result: StepResult) -> RenderedPrompt:
        """The prompt of the turn that answers this result."""
        ...

    def answer(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Read the completion of that prompt; whatever its ids are, this never raises."""
        ...


class Renderer(Protocol):
    """Begins conversations of one format."""

    @property
    def render_mode(self) -> RenderMode:
        """What the prompts of its records hold."""
        ...

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the tokenizer's file; the learner trains with the same one."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        ...

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a completion, where ids cannot say it."""
        ...

    @property
    def max_closing_tokens(self) -> int:
        """Most tokens that `ParsedCompletion.closing_ids` may hold."""
        ...

    def begin(self) -> Conversation:
        """A fresh conversation."""
        ...


class TurnFormat(Protocol):
    """How one turn looks in ids."""

    encoder: TextEncoder
    tokenizer_hash: str
    stop_token_ids: tuple[int, ...]
    stop_texts: tuple[str, ...]
    max_closing_tokens: int
    opening_ids: tuple[int, ...]
    """What stands before everything else, such as instructions."""
    separator_ids: tuple[int, ...]
    """What stands between a completion and the next question."""
    trims_content: bool
    """Whether blank edges of observations are left out."""
    head_ids: tuple[int, ...]
    """What invites the policy to go on, a forced `<think>` included."""

    def question(self, content_ids: Sequence[int]) -> tuple[int, ...]:
        """What the environment says."""
        ...

    def earlier_answer(self, answer: str) -> tuple[int, ...]:
        """An earlier turn's answer without its reasoning, up to and including the separator."""
        ...

    def parse(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Read a completion; whatever its ids are, this never raises."""
        ...
