"""However rows are put into passes, scores, losses and gradients are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from learner.batch import BatchTensors, tensors_of
from learner.config import LearnConfig
from learner.losses.epo import EpoStep
from learner.model import PolicyModel
from learner.options import update_options
from learner.passes import PassOptions, passes_of
from learner.update import Scores, accumulate_gradients, score_rows, step_terms
from longturn.errors import ConfigError
from tests.learner.batches import batch_of

# The longest row of the batch holds 30 ids: alone, about two, four and eight to a pass, and all in one.
BUDGETS = (0, 60, 120, 240, 10_000)


def kept_batch() -> BatchTensors:
    return tensors_of(batch_of().restricted_to([1, 2]))


def gradients(model_dir: Path, options: PassOptions) -> tuple[float, Scores, list[torch.Tensor]]:
    """Loss, scores and the gradients of a step with all terms that a row can feel."""
    model, kept = PolicyModel.load(model_dir, passes=options), kept_batch()
    chosen = update_options(LearnConfig.model_validate({"model": {"path": model_dir}, "epo": {"kappa_high": 1.001}}))
    proximal = score_rows(PolicyModel.load(model_dir), kept, temperature=1.0)
    terms = step_terms(kept, proximal, chosen, batch=0)
    loss, scores = accumulate_gradients(
        model,
        kept,
        terms.token_terms,
        chosen.loss,
        temperature=1.0,
        epo_step=EpoStep(beta=1.5, reference=1.0),
    )
    found = [parameter.grad for parameter in model.module.parameters()]
    assert all(each is not None for each in found)
    return loss, scores, [each for each in found if each is not None]


@pytest.mark.parametrize("budget", BUDGETS)
def test_rows_in_one_pass_do_not_see_each_other(model_dir: Path, budget: int) -> None:
    kept = kept_batch()
    alone = score_rows(PolicyModel.load(model_dir), kept, temperature=0.7)
    packed = PolicyModel.load(model_dir, passes=PassOptions(pack_tokens=budget))
    found = score_rows(packed, kept, temperature=0.7)
    torch.testing.assert_close(found.logprobs_N, alone.logprobs_N, rtol=0, atol=5e-6)
    torch.testing.assert_close(found.entropies_N, alone.entropies_N, rtol=0, atol=5e-6)


def test_rows_in_one_pass_do_not_see_each_other_in_float64(model_dir: Path) -> None:
    kept = kept_batch()
    scores = []
    for budget in (0, 10_000):
        model = PolicyModel.load(model_dir, passes=PassOptions(pack_tokens=budget))
        nn.Module.double(model.module)
        logprobs = [model.score(rows, temperature=1.0)[0] for rows in model.passes(kept)]
        scores.append(torch.cat(logprobs))
    torch.testing.assert_close(scores[1], scores[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("budget", BUDGETS[1:])
def test_the_split_into_passes_changes_neither_loss_nor_gradient(model_dir: Path, budget: int) -> None:
    loss, scores, expected = gradients(model_dir, PassOptions())
    packed_loss, packed_scores, found = gradients(model_dir, PassOptions(pack_tokens=budget))
    assert packed_loss == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(packed_scores.logprobs_N, scores.logprobs_N, rtol=0, atol=5e-6)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_layers_that_are_computed_again_give_the_same_gradients_to_the_bit(model_dir: Path) -> None:
    loss, _, expected = gradients(model_dir, PassOptions())
    again_loss, _, found = gradients(model_dir, PassOptions(recompute_layers=True))
    assert again_loss == loss
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_recomputing_keeps_only_the_inputs_of_layers(model_dir: Path) -> None:
    sizes = []
    for is_on in (False, True):
        model = PolicyModel.load(model_dir, passes=PassOptions(recompute_layers=is_on))
        kept: list[int] = []

        def pack(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        (first, *_) = model.passes(kept_batch())
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.loss(first, lambda logprobs, entropies, tokens: logprobs + entropies, temperature=1.0)
        assert not any(module.training for module in model.module.modules())
        sizes.append(sum(kept))
    assert sizes[1] < 0.5 * sizes[0]


def test_passes_hold_consecutive_rows_up_to_the_budget() -> None:
    kept = kept_batch()
    for budget in BUDGETS:
        passes = passes_of(kept, PassOptions(pack_tokens=budget))
        assert [row for each in passes for row in each.rows] == list(kept.rows)
        assert all(len(each.rows) == 1 or each.num_tokens <= budget for each in passes)
        stops = [0]
        for each in passes:
            assert each.tokens.start == stops[-1]
            assert each.tokens.stop - each.tokens.start == len(each.targets) == len(each.sources)
            stops.append(each.tokens.stop)
        assert stops[-1] == kept.num_tokens
    assert len(passes_of(kept, PassOptions(pack_tokens=10_000))) == 1


def test_a_model_whose_layers_cannot_be_computed_again_is_refused(model_dir: Path) -> None:
    class Plain(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.config = model.config
            self.linear = nn.Linear(4, 4, bias=False)

        def get_output_embeddings(self) -> nn.Module:
            return self.linear

        def get_decoder(self) -> nn.Module:
            return self.linear

    plain = Plain(PolicyModel.load(model_dir).module)
    with pytest.raises(ConfigError, match=r"learner\.model\.recompute_layers"):
        PolicyModel(plain, model_dir, PassOptions(recompute_layers=True))
