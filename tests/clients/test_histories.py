"""What prompts keep of earlier turns, and that the record holds exactly what the engine saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from clients.renderer import FormatRenderer, TagFormat
from clients.rendering.chat import ChatFormat, Reasoning
from clients.rendering.content import ContentOptions
from clients.rendering.history import WindowOptions
from learner.rows import build_rows
from longturn.records import RenderMode
from tests.clients.conversations import chat_format, play, renderer_of, results_of, trajectory_of
from tests.clients.family_tokenizers import FAMILIES

QWEN3 = chat_format("qwen3", reasoning=Reasoning.FREE)
END = "<|im_end|>"
WINDOW = WindowOptions(num_turns=2, max_earlier_tokens=60, max_summary_tokens=60)


def _text(turn_format: ChatFormat | TagFormat, ids: tuple[int, ...]) -> str:
    return turn_format.encoder.tokenizer.decode(list(ids), skip_special_tokens=False)


def _said(turn_format: ChatFormat, *actions: str) -> list[tuple[int, ...]]:
    return [
        turn_format.encoder.spell(f"<think>\nperhaps {action}\n</think>\n\n<action>{action}</action>{END}")
        for action in actions
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["append", "strip", "window"])
def test_rows_hold_what_the_engine_saw_and_sampled(family: str, mode: str) -> None:
    turn_format = chat_format(family)
    renderer = renderer_of(turn_format, strips=mode == "strip", window=WINDOW if mode == "window" else None)
    completions = [
        turn_format.encoder.spell(text)
        for text in ("a</think><action>go</action>", "cut off", "b</think><action>look</action>", "c</think>")
    ]
    moves, prompts = play(renderer, results_of(["one", "two", "three", "four"]), completions)
    rows = build_rows(trajectory_of(moves, renderer.render_mode), vocabulary_size=9999, max_row_tokens=9999).rows
    found = {}
    for row in rows:
        for place, position in enumerate(row.positions):
            turn = row.turn_indices[place]
            found.setdefault(turn, []).append((row.ids[:position], row.ids[position], row.behavior_logprobs[place]))
    for turn, (prompt, ids) in enumerate(zip(prompts, completions, strict=True)):
        expected = [
            ((*prompt, *ids[:index]), token, moves[turn].behavior_logprobs[index]) for index, token in enumerate(ids)
        ]
        assert found[turn] == expected
    assert len(rows) == (1 if mode == "append" else 4)


def test_appending_a_thinking_template_inserts_no_empty_block_and_drops_no_thought() -> None:
    moves, prompts = play(renderer_of(QWEN3), results_of(["one", "two", "three"]), _said(QWEN3, "go", "look", "wait"))
    text = _text(QWEN3, prompts[2])
    assert text.count("<think>") == 2
    assert "perhaps go" in text
    assert "<think>\n\n</think>" not in text
    assert all(move.format_valid for move in moves)


def test_stripping_leaves_earlier_reasoning_out_as_the_published_template_does() -> None:
    _, prompts = play(
        renderer_of(QWEN3, strips=True), results_of(["one", "two", "three"]), _said(QWEN3, "go", "look", "wait")
    )
    assert _text(QWEN3, prompts[2]) == (
        f"<|im_start|>system\nPlay.{END}\n<|im_start|>user\none{END}\n"
        f"<|im_start|>assistant\n<action>go</action>{END}\n<|im_start|>user\ntwo{END}\n"
        f"<|im_start|>assistant\n<action>look</action>{END}\n<|im_start|>user\nthree{END}\n<|im_start|>assistant\n"
    )


def test_ids_that_no_encoder_would_give_are_kept_as_they_were_sampled() -> None:
    spelled = QWEN3.encoder.spell(f"<think>\nhm</think><action>go</action>{END}")
    letters = [QWEN3.encoder.spell(letter)[0] for letter in "go east"]
    odd = (*QWEN3.encoder.spell("<think>hm</think><action>"), *letters, *QWEN3.encoder.spell(f"</action>{END}"))
    assert QWEN3.encoder.spell(_text(QWEN3, odd)) != odd
    moves, prompts = play(renderer_of(QWEN3), results_of(["one", "two"]), [odd, spelled])
    assert moves[0].action == "go east"
    assert prompts[1][len(prompts[0]) : len(prompts[0]) + len(odd)] == odd


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 420), max_size=12), min_size=1, max_size=6),
    st.sampled_from(["append", "strip", "window"]),
)
def test_whatever_is_sampled_the_record_is_the_prompt(completions: list[list[int]], mode: str) -> None:
    renderer = renderer_of(QWEN3, strips=mode == "strip", window=WINDOW if mode == "window" else None)
    observations = [f"place {index}" for index in range(len(completions))]
    moves, prompts = play(renderer, results_of(observations), completions)
    history: tuple[int, ...] = ()
    for move, prompt in zip(moves, prompts, strict=True):
        if mode == "append":
            history += move.prompt_ids
            assert history == prompt
            history += move.completion_ids
        else:
            assert move.prompt_ids == prompt


def test_a_window_shows_the_start_old_actions_counted_the_last_turns_and_the_newest_result() -> None:
    turn_format = chat_format("smollm2")
    said = [
        turn_format.encoder.spell(f"hm</think><action>{action}</action>{END}")
        for action in ("look", "look", "go east", "take lamp", "wait")
    ]
    observations = ["Find the lamp.", "A cave.", "A cave still.", "A hall.", "Taken."]
    _, prompts = play(renderer_of(turn_format, window=WINDOW), results_of(observations), said)
    content = _text(turn_format, prompts[4]).partition("user\n")[2].partition(END)[0]
    assert content == (
        "At the start: Find the lamp.\nFirst actions: look (2 times)\n"
        "Turn 3: A cave still.\nAction: go east\nTurn 4: A hall.\nAction: take lamp\nTurn 5: Taken."
    )
    assert _text(turn_format, prompts[0]).partition("user\n")[2].partition(END)[0] == "Find the lamp."


def test_a_window_is_bounded_however_long_the_episode_and_shows_where_it_was_cut() -> None:
    turn_format = chat_format("smollm2")
    said = [
        turn_format.encoder.spell(f"hm</think><action>go {'far ' * 30}{index}</action>{END}") for index in range(40)
    ]
    renderer = renderer_of(
        turn_format,
        window=WindowOptions(num_turns=2, max_earlier_tokens=20, max_summary_tokens=24),
        max_observation_tokens=40,
    )
    moves, prompts = play(renderer, results_of([f"Room {index}. " + "dust " * 200 for index in range(40)]), said)
    assert max(map(len, prompts)) < 400
    text = _text(turn_format, prompts[-1])
    assert text.count("[...]") == 7
    assert "First actions: [...]" in text
    assert len(moves) == 40


def test_a_window_without_a_summary_or_turns_shows_the_start_and_the_newest_result() -> None:
    turn_format = chat_format("llama3")
    said = [turn_format.encoder.spell("hm</think><action>go</action><|eot_id|>")] * 3
    window = WindowOptions(num_turns=0, max_earlier_tokens=60, max_summary_tokens=0)
    _, prompts = play(renderer_of(turn_format, window=window), results_of(["one", "two", "three"]), said)
    assert "\n\nAt the start: one\nTurn 3: three<|eot_id|>" in _text(turn_format, prompts[2])


def test_the_plain_format_strips_and_windows_too(tokenizer_path: Path) -> None:
    turn_format = TagFormat(Tokenizer.from_file(str(tokenizer_path)), tokenizer_hash="t")
    said = [turn_format.encoder.spell("hm</think><action>go</action>")] * 3
    content = ContentOptions(max_observation_tokens=100)
    stripping = FormatRenderer(turn_format, content, strips=True)
    _, prompts = play(stripping, results_of(["one", "two"]), said)
    assert _text(turn_format, prompts[1]) == "<obs>one<think></think><action>go</action><obs>two<think>"
    windowed = FormatRenderer(turn_format, content, window=replace(WINDOW, num_turns=1))
    _, prompts = play(windowed, results_of(["one", "two"]), said)
    assert _text(turn_format, prompts[1]) == "<obs>Turn 1: one\nAction: go\nTurn 2: two<think>"


def test_admissible_actions_are_shown_where_wanted_and_cut_visibly() -> None:
    actions = tuple(f"take lamp {index}" for index in range(40))
    hidden = renderer_of(QWEN3).begin().ask(results_of(["A hall."], admissible_actions=actions)[0])
    assert "take lamp" not in _text(QWEN3, hidden.recorded_ids)
    shown = renderer_of(QWEN3, shows_admissible=True, max_admissible_tokens=1000).begin()
    prompt = shown.ask(results_of(["A hall."], admissible_actions=actions[:2])[0])
    assert "A hall.\nYou can: take lamp 0; take lamp 1.<|im_end|>" in _text(QWEN3, prompt.recorded_ids)
    assert not prompt.was_cut
    short = renderer_of(QWEN3, shows_admissible=True, max_admissible_tokens=60).begin()
    prompt = short.ask(results_of(["A hall."], admissible_actions=actions)[0])
    text = _text(QWEN3, prompt.recorded_ids)
    num_shown = text.count("take lamp")
    assert 0 < num_shown < 40
    assert f"[...] and {40 - num_shown} more." in text
    assert prompt.was_cut
    assert renderer_of(QWEN3).render_mode is RenderMode.APPEND
