"""What a prompt keeps of the turns before it: everything, everything but reasoning, or the last few turns.

Invariant: the prompt that the engine sees is, id for id, what the record of the turn says. Appending, history is
exactly the ids that were sent and sampled, and nothing is encoded twice. The other two build every prompt anew, as a
server with a template would; the record then holds whole prompts, and where one does not extend what came before, the
learner starts a new row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from clients.rendering.content import Content
from clients.rendering.contract import ParsedCompletion, RenderedPrompt, TurnFormat
from clients.rendering.text import Piece
from longturn.records import StepResult


class AppendConversation:
    """The prompt is everything that was sent and sampled so far."""

    def __init__(self, turn_format: TurnFormat, content: Content) -> None:
        self._format = turn_format
        self._content = content
        self._history: list[int] = []

    def ask(self, result: StepResult) -> RenderedPrompt:
        """Add the newest result."""
        piece = self._content.of(result)
        before = self._format.separator_ids if self._history else self._format.opening_ids
        added = (*before, *self._format.question(piece.ids), *self._format.head_ids)
        self._history.extend(added)
        return RenderedPrompt(
            prompt_ids=self._history,
            recorded_ids=added,
            was_cut=piece.was_cut,
            was_neutralised=piece.was_neutralised,
        )

    def answer(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Add the completion, and what closes it."""
        parsed = self._format.parse(completion_ids)
        self._history.extend(completion_ids)
        self._history.extend(parsed.closing_ids)
        return parsed


class StrippedConversation:
    """Earlier turns stand without their reasoning, as templates that strip it render them."""

    def __init__(self, turn_format: TurnFormat, content: Content) -> None:
        self._format = turn_format
        self._content = content
        self._earlier: list[int] = list(turn_format.opening_ids)
        self._question: tuple[int, ...] = ()

    def ask(self, result: StepResult) -> RenderedPrompt:
        """All earlier questions and answers, and the newest result."""
        piece = self._content.of(result)
        self._question = self._format.question(piece.ids)
        return _whole((*self._earlier, *self._question, *self._format.head_ids), piece)

    def answer(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Keep what the completion says besides its reasoning."""
        parsed = self._format.parse(completion_ids)
        self._earlier.extend(self._question)
        self._earlier.extend(self._format.earlier_answer(parsed.answer))
        return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Fields as in RendererConfig."""

    num_turns: int
    max_earlier_tokens: int
    max_summary_tokens: int
    """0: no summary."""


class WindowConversation:
    """One question with the first observation, a summary of old actions, the last few turns and the newest result."""

    def __init__(self, turn_format: TurnFormat, content: Content, options: WindowOptions) -> None:
        self._format = turn_format
        self._content = content
        self._encoder = content.encoder
        self._options = options
        self._first = ""
        self._newest = ""
        self._turn = 0
        self._old_actions: list[str] = []
        self._pairs: deque[tuple[int, str, str]] = deque()

    def ask(self, result: StepResult) -> RenderedPrompt:
        """Build the window that ends with the newest result."""
        self._newest = result.observation
        if self._turn == 0:
            self._first = result.observation
        piece = self._earlier() + self._content.of(result)
        ids = (*self._format.opening_ids, *self._format.question(piece.ids), *self._format.head_ids)
        return _whole(ids, piece)

    def answer(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Remember what was seen and done."""
        parsed = self._format.parse(completion_ids)
        self._pairs.append((self._turn, self._newest, parsed.action))
        if len(self._pairs) > self._options.num_turns:
            self._old_actions.append(self._pairs.popleft()[2])
        self._turn += 1
        return parsed

    def _earlier(self) -> Piece:
        if self._turn == 0:
            return Piece(ids=())
        whole = Piece(ids=())
        if self._old_actions:
            whole += self._encoder.encode("At the start: ") + self._fit(self._first)
            if self._options.max_summary_tokens:
                whole += self._encoder.encode("\nFirst actions: ") + self._summary()
            whole += self._encoder.encode("\n")
        for turn, observation, action in self._pairs:
            whole += self._encoder.encode(f"Turn {turn + 1}: ") + self._fit(observation)
            whole += self._encoder.encode("\nAction: ") + self._fit(action) + self._encoder.encode("\n")
        return whole + self._encoder.encode(f"Turn {self._turn + 1}: ")

    def _fit(self, text: str) -> Piece:
        return self._encoder.fit(text.strip(), self._options.max_earlier_tokens)

    def _summary(self) -> Piece:
        """The old actions in order, repetitions counted; the oldest are missing where there are too many."""
        runs = [(action, sum(1 for _ in same)) for action, same in groupby(self._old_actions)]
        text = "; ".join(action if count == 1 else f"{action} ({count} times)" for action, count in runs)
        return self._encoder.fit_end(text, self._options.max_summary_tokens)


def _whole(ids: tuple[int, ...], piece: Piece) -> RenderedPrompt:
    return RenderedPrompt(
        prompt_ids=ids, recorded_ids=ids, was_cut=piece.was_cut, was_neutralised=piece.was_neutralised
    )
