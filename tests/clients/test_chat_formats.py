"""Chat formats: the text is the family's, the ids are what was sampled, and whatever a completion holds is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.config import RendererConfig
from clients.renderer import load_renderer
from clients.rendering.chat import ChatFormat, ChatOptions, Reasoning
from longturn.errors import ConfigError
from longturn.records import RenderMode, StepResult, TokenSpan
from tests.clients.conversations import chat_format, play, renderer_of, results_of
from tests.clients.family_tokenizers import FAMILIES, family_tokenizer, write_family_tokenizer
from tests.clients.tokens import write_tokenizer

FORMATS = {
    (family, reasoning): chat_format(family, reasoning=reasoning) for family in FAMILIES for reasoning in Reasoning
}
BEFORE = {
    "qwen2.5": "<|im_start|>system\nPlay.<|im_end|>\n",
    "qwen3": "<|im_start|>system\nPlay.<|im_end|>\n",
    "smollm2": "<|im_start|>system\nPlay.<|im_end|>\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nPlay.<|eot_id|>",
}
USER = dict.fromkeys(("qwen2.5", "qwen3", "smollm2"), "<|im_start|>user\n{}<|im_end|>\n") | {
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
}
ASSISTANT = dict.fromkeys(("qwen2.5", "qwen3", "smollm2"), "<|im_start|>assistant\n") | {
    "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n"
}
FORCED = dict.fromkeys(FAMILIES, "<think>") | {"qwen3": "<think>\n"}
END = dict.fromkeys(("qwen2.5", "qwen3", "smollm2"), "<|im_end|>") | {"llama3": "<|eot_id|>"}
AFTER_END = dict.fromkeys(("qwen2.5", "qwen3", "smollm2"), "\n") | {"llama3": ""}


def _text(turn_format: ChatFormat, ids: tuple[int, ...]) -> str:
    return turn_format.encoder.tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_episode_is_the_text_of_the_familys_template_and_its_ids(family: str) -> None:
    turn_format = FORMATS[family, Reasoning.FORCED]
    said = [f"I see {place}.\n</think>\n\n<action>go {place}</action>{END[family]}" for place in ("east", "north")]
    completions = [turn_format.encoder.spell(text) for text in said]
    moves, prompts = play(
        renderer_of(turn_format), results_of(["You are in a cave.", "A hall.\nExits: north."]), completions
    )
    expected = (
        f"{BEFORE[family]}{USER[family].format('You are in a cave.')}{ASSISTANT[family]}{FORCED[family]}{said[0]}"
        f"{AFTER_END[family]}{USER[family].format('A hall.' + chr(10) + 'Exits: north.')}{ASSISTANT[family]}"
        f"{FORCED[family]}"
    )
    assert _text(turn_format, prompts[1]) == expected
    assert prompts[1] == turn_format.encoder.spell(expected)
    assert [(move.action, move.format_valid) for move in moves] == [("go east", True), ("go north", True)]
    assert [move.reasoning for move in moves] == ["I see east.", "I see north."]
    assert all(move.num_synthetic_tokens == 0 for move in moves)


def test_where_it_should_not_reason_qwen3_gets_the_empty_block_of_its_template() -> None:
    turn_format = FORMATS["qwen3", Reasoning.NONE]
    prompt = renderer_of(turn_format).begin().ask(StepResult(observation="A hall."))
    assert _text(turn_format, prompt.recorded_ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_may_open_its_reasoning_itself_or_leave_it(family: str) -> None:
    turn_format = FORMATS[family, Reasoning.FREE]
    spell = turn_format.encoder.spell
    prompt = renderer_of(turn_format).begin().ask(StepResult(observation="A hall."))
    assert _text(turn_format, prompt.recorded_ids).endswith(ASSISTANT[family])
    thought = turn_format.parse(spell(f"<think>\nhm\n</think>\n\n<action>look</action>{END[family]}"))
    assert (thought.reasoning, thought.action, thought.format_valid) == ("hm", "look", True)
    short = turn_format.parse(spell(f"<action>look</action>{END[family]}"))
    assert (short.reasoning, short.action, short.format_valid) == ("", "look", True)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_ends_with_the_action_is_closed_by_a_token_that_nobody_sampled(family: str) -> None:
    turn_format = FORMATS[family, Reasoning.FORCED]
    ids = turn_format.encoder.spell("hm</think><action>look</action>")
    parsed = turn_format.parse(ids)
    assert turn_format.stop_texts == ("</action>",)
    assert parsed.format_valid
    assert _text(turn_format, parsed.closing_ids) == END[family]
    moves, prompts = play(renderer_of(turn_format), results_of(["one", "two"]), [ids, ids])
    assert moves[0].num_synthetic_tokens == 1
    assert prompts[1][: len(prompts[0])] == prompts[0]
    assert prompts[1][len(prompts[0]) :][: len(ids) + 1] == (*ids, *parsed.closing_ids)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reasoning", list(Reasoning))
@settings(max_examples=12, deadline=None)
@given(thought=st.text(max_size=40), action=st.text(min_size=1, max_size=30))
def test_a_turn_spelled_from_what_was_read_is_the_turn_that_was_sampled(
    family: str, reasoning: Reasoning, thought: str, action: str
) -> None:
    turn_format = FORMATS[family, reasoning]
    # What text environments and policies say; tags and surrogates are the fuzzer's, below.
    thought, action = (part.replace("<", "").encode("utf-8", "replace").decode().strip() for part in (thought, action))
    text = turn_format.spell_answer("" if reasoning is Reasoning.NONE else thought, action or "look")
    parsed = turn_format.parse((*turn_format.encoder.spell(text), turn_format.stop_token_ids[0]))
    assert parsed.format_valid
    assert turn_format.spell_answer(parsed.reasoning, parsed.action) == text
    assert text.count("<think>") == int(reasoning is Reasoning.FREE)


@pytest.mark.parametrize(
    ("completion", "action", "reasoning", "closing"),
    [
        ("no tags at all", "", "no tags at all", "</think>END"),
        ("hm</think>", "", "hm", "END"),
        ("hm</think><action>go ea", "go ea", "hm", "END"),
        ("<action>go east</action>END", "go east", "", ""),
        ("hm</think>go east</action>END", "go east", "hm", ""),
        ("</think><action></action>END", "", "", ""),
        ("hm</think>words<action>go</action>END", "go", "hm", ""),
        ("hm</think><action>go</action>moreEND", "go", "hm", ""),
        ("hm<action>x</think>go</action>END", "go", "hm<action>x", ""),
        ("<think>hm</think><action>go</action>END", "go", "<think>hm", ""),
        ("hm</think><action>a</action><action>b</action>END", "a", "hm", ""),
        ("hm</think><action>go</action><|endoftext|>", "go", "hm", "END"),
        ("", "", "", "</think>END"),
    ],
)
def test_a_malformed_completion_still_gives_an_action_and_a_well_formed_history(
    completion: str, action: str, reasoning: str, closing: str
) -> None:
    turn_format = FORMATS["qwen2.5", Reasoning.FORCED]
    parsed = turn_format.parse(turn_format.encoder.spell(completion.replace("END", "<|im_end|>")))
    assert not parsed.format_valid
    assert parsed.action == action
    assert parsed.reasoning == reasoning
    assert _text(turn_format, parsed.closing_ids) == closing.replace("END", "<|im_end|>")
    assert len(parsed.closing_ids) <= turn_format.max_closing_tokens


def test_without_tags_everything_is_the_action_where_none_was_asked_to_reason() -> None:
    turn_format = FORMATS["llama3", Reasoning.NONE]
    parsed = turn_format.parse(turn_format.encoder.spell("go east<|eot_id|>"))
    assert (parsed.action, parsed.format_valid) == ("go east", False)


def test_spans_are_the_tokens_that_hold_the_text_even_where_a_token_holds_the_end_of_a_tag_too() -> None:
    tokenizer = family_tokenizer("qwen2.5", words=["<action>go east</action>.\n"])
    turn_format = ChatFormat("qwen2.5", tokenizer, tokenizer_hash="t", options=ChatOptions())
    assert tokenizer.token_to_id(">go") is not None
    ids = turn_format.encoder.spell("hm</think><action>go east</action>.\n")
    parsed = turn_format.parse(ids)
    span = parsed.action_span
    assert span is not None
    assert _text(turn_format, ids[span.start : span.end]) == ">go east"
    assert parsed.action == "go east"
    assert parsed.reasoning_span == TokenSpan(start=0, end=len(turn_format.encoder.spell("hm")))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_completion_makes_the_parser_raise(data: st.DataObject) -> None:
    family, reasoning = data.draw(st.sampled_from(sorted(FORMATS)))
    turn_format = FORMATS[family, Reasoning(reasoning)]
    tags = ["<think>", "</think>", "<action>", "</action>", "<action", "action>", "＜action＞", "\x00", *END.values()]
    spelled = st.sampled_from([turn_format.encoder.spell(tag) for tag in tags])
    # 9,999 is a row of a padded embedding, which no tokenizer knows.
    anything = st.integers(0, 430).map(lambda index: (index,)) | st.just((9999,))
    ids = [index for part in data.draw(st.lists(spelled | anything, max_size=25)) for index in part]
    parsed = turn_format.parse(ids)
    assert len(parsed.closing_ids) <= turn_format.max_closing_tokens
    assert (ids + list(parsed.closing_ids))[-1] == turn_format.stop_token_ids[0]
    for text in (parsed.action, parsed.reasoning, parsed.answer):
        text.encode("utf-8")
    for span in (parsed.reasoning_span, parsed.action_span):
        assert span is None or 0 <= span.start < span.end <= len(ids)
    assert not (parsed.format_valid and not parsed.action)


@pytest.mark.parametrize("completion", ["<action>go", "＜action＞go＜/action＞", "\x00", "a\x00b", "x" * 1_000_000])
def test_odd_completions_are_defined(completion: str) -> None:
    turn_format = FORMATS["smollm2", Reasoning.FORCED]
    parsed = turn_format.parse(turn_format.encoder.spell(completion))
    assert not parsed.format_valid


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(text=st.text(max_size=120))
def test_no_observation_becomes_a_special_token(family: str, text: str) -> None:
    turn_format = FORMATS[family, Reasoning.FORCED]
    injected = random.Random(len(text)).choice(sorted(turn_format.encoder.special.values()))
    piece = turn_format.encoder.fit(text + injected, 300)
    assert turn_format.encoder.special.keys().isdisjoint(piece.ids)


def test_another_familys_tokenizer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = write_family_tokenizer("qwen3", tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"no added token '<\|eot_id\|>'.*set renderer\.format"):
        load_renderer(RendererConfig(tokenizer=path, format="llama3"))
    plain = write_tokenizer(tmp_path / "plain.json")
    with pytest.raises(ConfigError, match=r"'<\|im_end\|>'"):
        load_renderer(RendererConfig(tokenizer=plain, format="qwen2.5"))


def test_settings_of_chat_formats_are_refused_for_the_plain_one() -> None:
    for setting in ({"reasoning": "none"}, {"instructions": "Play."}, {"stop_at_action": False}):
        with pytest.raises(ValueError, match=r"set renderer\.format"):
            RendererConfig.model_validate(setting)
    with pytest.raises(ValueError, match="max_summary_tokens must be 0 or at least 16"):
        RendererConfig(max_summary_tokens=3)


def test_a_renderer_is_made_as_its_settings_say(tmp_path: Path) -> None:
    path = write_family_tokenizer("qwen3", tmp_path / "tokenizer.json")
    chosen = {"tokenizer": path, "format": "qwen3", "instructions": "Be brief."}
    appending = load_renderer(RendererConfig.model_validate(chosen))
    assert appending.render_mode is RenderMode.APPEND
    for history in ("strip", "window"):
        assert load_renderer(RendererConfig.model_validate(chosen | {"history": history})).render_mode is (
            RenderMode.WINDOW
        )
    patient = load_renderer(RendererConfig.model_validate(chosen | {"stop_at_action": False}))
    assert (appending.stop_texts, patient.stop_texts) == (("</action>",), ())
