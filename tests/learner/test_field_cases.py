"""Faults that other trainers had, provoked here by kind."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learner.batch import BatchTensors, tensors_of
from learner.config import LearnConfig
from learner.diagnostics.repetition import repeated_token_share
from learner.diagnostics.turn_entropy import entropy_by_turn
from learner.layout import TokenLayout
from learner.ledger.tasks import sampling_seed
from learner.losses.epo import EpoStep, corridor_occupancy
from learner.model import PolicyModel
from learner.options import update_options
from learner.passes import PassOptions
from learner.update import accumulate_gradients, score_rows, step_terms
from longturn.records import Trajectory
from tests.learner.batches import batch_of
from tests.support.learner_run import rows_of, small_config, train_with_pool
from tests.support.scripted_pool import Member, made_up

SETTINGS = LearnConfig.model_validate({"epo": {"kappa_high": 1.01}})


def gradients(model_dir: Path, kept: BatchTensors, *, pack_tokens: int = 0) -> tuple[float, list[torch.Tensor]]:
    model, options = PolicyModel.load(model_dir, passes=PassOptions(pack_tokens=pack_tokens)), update_options(SETTINGS)
    proximal = score_rows(model, kept, temperature=1.0)
    terms = step_terms(kept, proximal, options, batch=0)
    loss, _ = accumulate_gradients(
        model, kept, terms.token_terms, options.loss, temperature=1.0, epo_step=EpoStep(beta=1.5, reference=1.0)
    )
    return loss, [parameter.grad for parameter in model.module.parameters() if parameter.grad is not None]


def test_the_normaliser_counts_what_is_trained_and_not_what_was_generated(model_dir: Path) -> None:
    batch = batch_of(num_groups=4)
    loss, found = gradients(model_dir, tensors_of(batch.restricted_to([1, 2])))
    alone = replace(batch, groups=batch.groups[1:3])
    expected_loss, expected = gradients(model_dir, tensors_of(alone))
    assert loss == expected_loss
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_a_token_mean_over_rows_of_very_different_length_is_that_of_one_pass(model_dir: Path) -> None:
    kept = tensors_of(batch_of(num_groups=6))
    lengths = [len(row.ids) for row in kept.rows]
    assert max(lengths) > 1.5 * min(lengths)
    weights_N = step_terms(
        kept, score_rows(PolicyModel.load(model_dir), kept, temperature=1.0), update_options(SETTINGS), batch=0
    ).token_terms.policy_weights_N
    torch.testing.assert_close(weights_N, torch.full_like(weights_N, 1 / kept.num_tokens))
    loss, found = gradients(model_dir, kept)
    together_loss, together = gradients(model_dir, kept, pack_tokens=10**6)
    assert together_loss == pytest.approx(loss, abs=1e-6)
    for ours, theirs in zip(together, found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_entropies_belong_to_the_tokens_they_predict(model_dir: Path) -> None:
    """Six trained tokens in two turns, by hand from the distributions of a plain forward pass."""
    batch = batch_of()
    kept = tensors_of(replace(batch, groups=(replace(batch.groups[1], members=batch.groups[1].members[:1]),)))
    (row,) = kept.rows
    model = PolicyModel.load(model_dir)
    entropies_N = score_rows(model, kept, temperature=1.0).entropies_N
    with torch.no_grad():
        probabilities = torch.softmax(model.module(torch.tensor([row.ids])).logits[0].double(), dim=-1)
    by_hand = [-float((probabilities[at - 1] * probabilities[at - 1].log()).sum()) for at in row.positions[:6]]
    assert entropies_N[:6].tolist() == pytest.approx(by_hand, abs=1e-5)
    assert bool((entropies_N >= 0).all())
    layout = TokenLayout(
        turn_index_N=torch.tensor([0, 0, 0, 0, 1, 1]),
        trajectory_index_K=torch.tensor([0, 0]),
        group_index_J=torch.tensor([0]),
    )
    per_turn = entropy_by_turn(entropies_N[:6], torch.ones(6, dtype=torch.bool), layout)
    assert per_turn == pytest.approx([sum(by_hand[:4]) / 4, sum(by_hand[4:]) / 2], abs=1e-5)


def test_neighbours_in_a_pass_change_neither_a_threshold_nor_a_corridor(model_dir: Path) -> None:
    kept, options = tensors_of(batch_of().restricted_to([1, 2])), update_options(SETTINGS)
    assert options.loss.epo is not None
    found = []
    step: EpoStep | None = None
    for pack_tokens in (0, 10**6):
        model = PolicyModel.load(model_dir, passes=PassOptions(pack_tokens=pack_tokens))
        entropies_N = score_rows(model, kept, temperature=1.0).entropies_N
        # The upper edge lies half-way between the two tokens in the middle.
        middle = entropies_N.double().quantile(0.5, interpolation="midpoint").item()
        step = step or EpoStep(beta=1.0, reference=middle / options.loss.epo.kappa_high)
        mask_N = torch.ones(kept.num_tokens, dtype=torch.bool)
        shares = corridor_occupancy(entropies_N, mask_N, step, options.loss.epo)
        assert shares.inside == pytest.approx(0.5, abs=0.1)
        found.append((shares.below, shares.inside, shares.above, middle, entropies_N.quantile(0.8).item()))
    assert found[1] == pytest.approx(found[0], abs=1e-5)


def test_members_of_a_group_draw_from_different_seeds_and_a_rerun_from_the_same() -> None:
    seeds = [[sampling_seed(3, "t000001.0", index) for index in range(64)] for _ in range(2)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 64


def test_repeated_tokens_are_counted_within_completions() -> None:
    assert repeated_token_share([(7, 7, 7, 7, 7), (7,), ()]) == 1.0
    assert repeated_token_share([(1, 1, 2, 3), (3, 4)]) == 0.25
    assert repeated_token_share([]) == 0.0


def degenerate_from_batch(number: int, groups_per_step: int, member: Member) -> Trajectory:
    """From a batch on, every completion is one character again and again."""
    played = made_up(member)
    if int(member.assignment.group_id[1:7]) < number * groups_per_step:
        return played
    turns = [replace(turn, completion_ids=(9,) * len(turn.completion_ids)) for turn in played.turns]
    return replace(played, turns=tuple(turns))


@pytest.mark.parametrize("action", ["log", "stop"])
def test_degenerate_output_raises_an_alarm_at_once_and_by_rule_ends_the_run(
    tmp_path: Path, model_dir: Path, task_path: Path, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    config = small_config(
        tmp_path / "run", model_dir, task_path, batch={"num_batches": 3}, alarms={"on_repetition": action}
    )
    reason, _ = train_with_pool(config, lambda member: degenerate_from_batch(1, 2, member))
    rows = rows_of(config.run_dir)
    fired = [record for record in caplog.records if getattr(record, "rule", "") == "repetition"]
    assert [getattr(record, "batch", math.nan) for record in fired] == ([1, 2] if action == "log" else [1])
    if action == "log":
        assert reason == "COMPLETED"
        return
    assert reason == "REPETITION"
    # What showed it is not trained.
    assert [row["outcome"] for row in rows] == ["TRAINED", "REPETITION"]
