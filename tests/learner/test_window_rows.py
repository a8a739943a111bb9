"""What rows promise whatever prompts keep: logprobs of what was sampled after exactly its prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from learner.model import PolicyModel
from learner.passes import Pass
from learner.rows import build_rows
from longturn.records import RenderMode
from tests.learner.test_rows import trajectory, turn
from tests.support.sampling_policy import load


@pytest.mark.parametrize("mode", list(RenderMode))
def test_stripped_and_appended_rows_give_the_logprobs_of_their_prompts(model_dir: Path, mode: RenderMode) -> None:
    # Prompt, reasoning and action of three turns; stripped, earlier turns stand without their reasoning.
    parts = [((1, 2), (3, 4), (5,)), ((6,), (7, 8), (9, 10)), ((11, 12), (13,), (14,))]
    turns, prompts = [], []
    for index, (added, reasoning, action) in enumerate(parts):
        if mode is RenderMode.APPEND:
            earlier = [token for part in parts[:index] for ids in part for token in ids]
        else:
            earlier = [token for before, _, acted in parts[:index] for token in (*before, *acted)]
        prompts.append((*earlier, *added))
        turns.append(turn(added if mode is RenderMode.APPEND else prompts[-1], (*reasoning, *action)))
    rows = build_rows(trajectory(*turns, mode=mode), vocabulary_size=48, max_row_tokens=99).rows
    assert len(rows) == (1 if mode is RenderMode.APPEND else 3)
    model, plain = PolicyModel.load(model_dir), load(model_dir)
    passes = [Pass(rows=(row,), tokens=slice(0, row.num_trained)) for row in rows]
    scored = torch.cat([model.score(one, temperature=0.7)[0] for one in passes]).tolist()
    expected = []
    for prompt, played in zip(prompts, turns, strict=True):
        ids = (*prompt, *played.completion_ids)
        with torch.no_grad():
            table = torch.log_softmax(plain(torch.tensor([ids])).logits[0] / 0.7, dim=-1)
        expected += [table[place - 1, ids[place]].item() for place in range(len(prompt), len(ids))]
    assert scored == pytest.approx(expected, abs=1e-5)


def test_an_answer_of_one_token_is_trained_in_every_turn() -> None:
    played = trajectory(turn((1, 2), (3,)), turn((4,), (5,)), turn((6,), (7,)))
    (row,) = build_rows(played, vocabulary_size=48, max_row_tokens=99).rows
    assert [row.ids[position] for position in row.positions] == [3, 5, 7]
    assert row.response_mask == (0, 0, 1, 0, 1, 0, 1)
