"""Chat formats: the published templates of Qwen2.5, Qwen3, Llama 3 and SmolLM2, as ids.

    SYSTEM: what to do | USER: observation | ASSISTANT: <think>reasoning</think><action>action</action>END | USER: ...
    |------------------ prompt ------------------------||------------- completion ---------------------| added ...

Each message begins and ends with special tokens of the family; the tags are text, and a token may begin before a tag or
end behind it. A completion is read by the bytes of its ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tokenizers import Tokenizer

from clients.rendering.contract import ParsedCompletion
from clients.rendering.text import TextEncoder
from clients.rendering.token_bytes import TokenBytes, TokenText
from longturn.errors import ConfigError
from longturn.tag_format import ACTION_END_TAG, ACTION_TAG, THINK_END_TAG, THINK_TAG


class Reasoning(StrEnum):
    """Whether a completion reasons before it acts."""

    FORCED = "forced"
    """The prompt ends with `<think>`."""
    FREE = "free"
    """The policy may open `<think>` itself."""
    NONE = "none"
    """It is asked for the action alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """What surrounds the messages of a family."""

    role_start: str
    role_end: str
    end: str
    """Ends a message; the policy samples it."""
    separator: str = ""
    """Between messages."""
    beginning: str = ""
    other_stops: tuple[str, ...] = ()
    forced_think: str = THINK_TAG
    default_system: str = ""
    """What the template says where a conversation has no system message."""
    trims: bool = False
    """Whether the template leaves out blank edges of messages."""
    no_think: str = ""
    """What the template puts where the policy should not reason."""

    def head(self, role: str) -> str:
        """Everything before a message's text."""
        return f"{self.role_start}{role}{self.role_end}"


def _chatml(*, default_system: str = "", forced_think: str = THINK_TAG, no_think: str = "") -> ChatTemplate:
    """What Qwen and SmolLM2 share."""
    return ChatTemplate(
        role_start="<|im_start|>",
        role_end="\n",
        end="<|im_end|>",
        separator="\n",
        other_stops=("<|endoftext|>",),
        default_system=default_system,
        forced_think=forced_think,
        no_think=no_think,
    )


TEMPLATES: Mapping[str, ChatTemplate] = {
    "qwen2.5": _chatml(default_system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    "qwen3": _chatml(forced_think=f"{THINK_TAG}\n", no_think=f"{THINK_TAG}\n\n{THINK_END_TAG}\n\n"),
    "smollm2": _chatml(default_system="You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    "llama3": ChatTemplate(
        role_start="<|start_header_id|>",
        role_end="<|end_header_id|>\n\n",
        end="<|eot_id|>",
        beginning="<|begin_of_text|>",
        other_stops=("<|end_of_text|>",),
        trims=True,
    ),
}

_WHAT = "You act in a text environment. You are shown what you observe, and you answer with your next action."
_INSTRUCTIONS = {
    Reasoning.FORCED: f"{_WHAT} First think, between {THINK_TAG} and {THINK_END_TAG}. Then give one action between "
    f"{ACTION_TAG} and {ACTION_END_TAG}, and nothing else.",
    Reasoning.FREE: f"{_WHAT} You may think first, between {THINK_TAG} and {THINK_END_TAG}. Give one action between "
    f"{ACTION_TAG} and {ACTION_END_TAG}, and nothing else.",
    Reasoning.NONE: f"{_WHAT} Give one action between {ACTION_TAG} and {ACTION_END_TAG}, and nothing else.",
}

_THINK, _THINK_END = THINK_TAG.encode(), THINK_END_TAG.encode()
_ACTION, _ACTION_END = ACTION_TAG.encode(), ACTION_END_TAG.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Fields as in RendererConfig."""

    reasoning: Reasoning = Reasoning.FORCED
    instructions: str = ""
    stops_at_action: bool = True


class ChatFormat:
    """A turn as messages of a family."""

    def __init__(self, family: str, tokenizer: Tokenizer, *, tokenizer_hash: str, options: ChatOptions) -> None:
        """Raise ConfigError if the tokenizer is not one of the family."""
        self.template = template = TEMPLATES[family]
        self.encoder = encoder = TextEncoder(tokenizer)
        self.tokenizer_hash = tokenizer_hash
        self.reasoning = options.reasoning
        self._end_id = _required_id(encoder, template.end, family)
        for text in (template.role_start, *filter(None, [template.beginning])):
            _required_id(encoder, text, family)
        others = [encoder.special_id(text) for text in template.other_stops]
        self.stop_token_ids: tuple[int, ...] = (self._end_id, *(index for index in others if index is not None))
        self.stop_texts: tuple[str, ...] = (ACTION_END_TAG,) if options.stops_at_action else ()
        self._bytes = TokenBytes(tokenizer, spoken=(THINK_TAG, THINK_END_TAG, ACTION_TAG, ACTION_END_TAG))
        instructions = options.instructions or _INSTRUCTIONS[options.reasoning]
        self.opening_ids = (
            *encoder.spell(template.beginning + template.head("system")),
            *encoder.spell(instructions.strip()),
            *encoder.spell(template.end + template.separator),
        )
        self.trims_content = True
        self.separator_ids = encoder.spell(template.separator)
        self._question_head = encoder.spell(template.head("user"))
        self._message_end = encoder.spell(template.end + template.separator)
        self._answer_head = encoder.spell(template.head("assistant"))
        forced = {Reasoning.FORCED: template.forced_think, Reasoning.NONE: template.no_think}
        self.head_ids = (*self._answer_head, *encoder.spell(forced.get(options.reasoning, "")))
        self._think_end_ids = encoder.spell(THINK_END_TAG)
        self.max_closing_tokens = len(self._think_end_ids) + 1

    def question(self, content_ids: Sequence[int]) -> tuple[int, ...]:
        """A user's message."""
        return (*self._question_head, *content_ids, *self._message_end)

    def earlier_answer(self, answer: str) -> tuple[int, ...]:
        """An assistant's message."""
        return (*self._answer_head, *self.encoder.encode(answer).ids, *self._message_end)

    def parse(self, completion_ids: Sequence[int]) -> ParsedCompletion:
        """Find reasoning and action by the bytes of the ids.

        Tolerant: without `</think>` the reasoning ends at `<action>`; without `<action>` the action is what follows
        `</think>`, or everything where no reasoning was begun; without `</action>` it runs to the end. All of these
        have `format_valid` false.
        """
        ids = list(completion_ids)
        has_end = bool(ids) and ids[-1] == self._end_id
        said_ids = ids[:-1] if has_end else ids
        said = self._bytes.read(said_ids)
        places = _Places.find(said.data, is_begun=self.reasoning is Reasoning.FORCED)
        action = said.text(places.body_start, places.body_end)
        return ParsedCompletion(
            action=action,
            reasoning=said.text(places.reasoning_start, places.reasoning_end),
            format_valid=bool(action)
            and all(map(self._bytes.is_text, said_ids))
            and self._is_well_formed(said.data, places),
            reasoning_span=said.span(places.reasoning_start, places.reasoning_end),
            action_span=said.span(places.body_start, places.body_end),
            closing_ids=self._closing_ids(places, has_end=has_end),
            answer=said.text(places.answer_start, len(said.data)),
        )

    def beginning(self, *, has_system: bool) -> tuple[int, ...]:
        """What stands before a conversation that brings its own messages."""
        template = self.template
        if has_system or not template.default_system:
            return self.encoder.spell(template.beginning)
        return self.encoder.spell(template.beginning) + self.message("system", template.default_system)

    def message(self, role: str, text: str) -> tuple[int, ...]:
        """A whole message of a conversation that brings its own."""
        head = self.encoder.spell(self.template.head(role))
        return (*head, *self.encoder.encode(text.strip() if self.template.trims else text).ids, *self._message_end)

    @property
    def begun_text(self) -> str:
        """What the prompt already says of the answer."""
        return self.template.forced_think if self.reasoning is Reasoning.FORCED else ""

    def spell_answer(self, reasoning: str, action: str) -> str:
        """The text of a well-formed completion, without its end."""
        acted = f"{ACTION_TAG}{action}{ACTION_END_TAG}"
        if self.reasoning is Reasoning.NONE:
            return acted
        begun = "" if self.reasoning is Reasoning.FORCED else THINK_TAG
        return f"{begun}{reasoning}{THINK_END_TAG}{acted}"

    def read(self, token_ids: Sequence[int]) -> TokenText:
        """The text of ids, special tokens left out."""
        return self._bytes.read(token_ids)

    def _is_well_formed(self, data: bytes, places: _Places) -> bool:
        is_closed = not places.is_reasoning or places.has_think_end
        may_reason = self.reasoning is not Reasoning.NONE or not places.is_reasoning
        tags = {tag: data.count(tag) for tag in (_THINK, _THINK_END, _ACTION, _ACTION_END)}
        is_begun = self.reasoning is Reasoning.FORCED
        return (
            is_closed
            and may_reason
            and tags[_THINK] == int(places.is_reasoning and not is_begun)
            and tags[_THINK_END] == int(places.is_reasoning)
            and tags[_ACTION] == tags[_ACTION_END] == 1
            and places.has_action
            and places.has_action_end
            and not data[places.answer_start : places.body_start - len(_ACTION)].strip()
            and not data[places.body_end + len(_ACTION_END) :].strip()
        )

    def _closing_ids(self, places: _Places, *, has_end: bool) -> tuple[int, ...]:
        if has_end:
            return ()
        is_open = places.is_reasoning and not places.has_think_end and not places.has_action
        return (*(self._think_end_ids if is_open else ()), self._end_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where things stand in a completion, in bytes."""

    is_reasoning: bool
    has_think_end: bool
    has_action: bool
    has_action_end: bool
    reasoning_start: int
    reasoning_end: int
    answer_start: int
    """Behind the reasoning."""
    body_start: int
    body_end: int

    @classmethod
    def find(cls, data: bytes, *, is_begun: bool) -> _Places:
        """Look for the tags; `is_begun`: the prompt opened the reasoning."""
        opened = _after(data, _THINK, 0) if data.lstrip().startswith(_THINK) else None
        reasoning_start = opened if opened is not None and not is_begun else 0
        is_reasoning = is_begun or opened is not None
        think_end = data.find(_THINK_END)
        search_start = think_end if think_end >= 0 else 0
        action = data.find(_ACTION, search_start)
        ends = [place for place in (think_end, action, data.find(_ACTION_END)) if place >= 0]
        reasoning_end = max(reasoning_start, min(ends, default=len(data))) if is_reasoning else reasoning_start
        answer_start = think_end + len(_THINK_END) if think_end >= 0 else reasoning_end
        body_start = action + len(_ACTION) if action >= 0 else answer_start
        action_end = data.find(_ACTION_END, body_start)
        return cls(
            is_reasoning=is_reasoning,
            has_think_end=think_end >= 0,
            has_action=action >= 0,
            has_action_end=action_end >= 0,
            reasoning_start=reasoning_start,
            reasoning_end=reasoning_end,
            answer_start=answer_start,
            body_start=body_start,
            body_end=action_end if action_end >= 0 else len(data),
        )


def _after(data: bytes, tag: bytes, start: int) -> int:
    return data.index(tag, start) + len(tag)


def _required_id(encoder: TextEncoder, text: str, family: str) -> int:
    index = encoder.special_id(text)
    if index is None:
        raise ConfigError(
            f"the tokenizer has no added token {text!r}, which the format {family!r} needs; set renderer.format to the "
            "family of renderer.tokenizer"
        )
    return index
