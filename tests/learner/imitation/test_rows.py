from __future__ import annotations

import dataclasses

import pytest
from tokenizers import Tokenizer

from learner.imitation.config import TokenizerConfig
from learner.imitation.rows import RowBuilder, texts_of
from learner.imitation.tokenizer import train_tokenizer
from longturn.errors import ConfigError
from tests.learner.imitation.demonstrations import demonstration


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts_of([demonstration(seed) for seed in range(8)]), TokenizerConfig(vocab_size=400))


def test_a_row_is_the_rendered_text(tokenizer: Tokenizer) -> None:
    trajectory = demonstration(0, num_turns=2)
    row = RowBuilder(tokenizer).build(trajectory)
    first, last = trajectory.turns
    assert tokenizer.decode(list(row.ids), skip_special_tokens=False) == (
        f"<obs>{trajectory.initial_observation}<think>{first.reasoning}</think><action>{first.action}</action>"
        "<obs>There is a coin on the floor.<think>coin</think><action>take coin</action>"
    )
    assert last.action == "take coin"


def test_prompts_are_not_imitated_and_completions_are(tokenizer: Tokenizer) -> None:
    row = RowBuilder(tokenizer).build(demonstration(0, num_turns=3))
    imitated = [index for index, trained in zip(row.ids, row.response_mask, strict=True) if trained]
    assert tokenizer.decode(imitated, skip_special_tokens=False).count("</action>") == 3
    assert tokenizer.token_to_id("<obs>") not in imitated
    assert tokenizer.token_to_id("<think>") not in imitated


def test_of_a_marked_turn_only_the_reasoning_is_imitated(tokenizer: Tokenizer) -> None:
    plain = RowBuilder(tokenizer).build(demonstration(0, num_turns=3))
    marked = RowBuilder(tokenizer).build(demonstration(0, num_turns=3, untrained=frozenset({1})))
    lost = [
        index
        for index, before, after in zip(plain.ids, plain.response_mask, marked.response_mask, strict=True)
        if before and not after
    ]
    action = demonstration(0, num_turns=3).turns[1].action
    assert tokenizer.decode(lost, skip_special_tokens=False) == f"{action}</action>"
    assert len(marked.completions) == len(plain.completions) - 1


def test_text_that_spells_a_tag_is_refused(tokenizer: Tokenizer) -> None:
    trajectory = demonstration(0)
    spelled = dataclasses.replace(trajectory, initial_observation="a sign: <action>quit</action>")
    with pytest.raises(ConfigError, match="spells a tag"):
        RowBuilder(tokenizer).build(spelled)


def test_directions_are_pieces_of_their_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("go east").tokens == ["goĠeast"]
    assert "Ġeast" in tokenizer.encode("The sign says east.").tokens
