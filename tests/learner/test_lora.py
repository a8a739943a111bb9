"""Adapters: trained beside frozen weights, published inside them, and the policy without them as the reference."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from learner.assembly import load_training
from learner.batch import BatchTensors, tensors_of
from learner.checkpoint import load_state, restore_adapter, save_checkpoint
from learner.checkpoint_files import CheckpointError, find_checkpoints
from learner.config import LearnConfig
from learner.losses.entropy_history import HistoryOptions
from learner.model import PolicyModel
from learner.reference import BaseReference
from learner.state import TrainerState
from learner.update import score_rows
from longturn.errors import ConfigError
from tests.learner.batches import batch_of
from tests.support.learner_run import audited, rows_of, small_config, train_with_pool

pytest.importorskip("peft", reason="the extra lora is not installed")


def config_of(model_dir: Path, **lora: Any) -> LearnConfig:
    settings = {"rank": 4, "alpha": 8.0, **lora}
    # The small model's positions reach 4096 ids, with room for the default episode.
    return LearnConfig.model_validate({"model": {"path": model_dir}, "lora": settings, "reference": {"kl": "loss"}})


def kept_batch() -> BatchTensors:
    return tensors_of(batch_of())


def stir(model: PolicyModel) -> None:
    """Move the adapter away from its start, at which its product is zero."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in model.trainable:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(model_dir: Path) -> None:
    model = load_training(config_of(model_dir), None).model
    expected = score_rows(PolicyModel.load(model_dir), kept_batch(), temperature=1.0)
    assert torch.equal(score_rows(model, kept_batch(), temperature=1.0).logprobs_N, expected.logprobs_N)
    names = [name for name, _ in model.trainable]
    assert names
    assert all(".lora_" in name for name in names)
    # All linear layers but the head: four of attention and three of the feed-forward, two matrices each, in two layers.
    assert len(names) == 2 * 7 * 2


def test_the_saved_weights_hold_the_adapter_and_no_trace_of_it(tmp_path: Path, model_dir: Path) -> None:
    model = load_training(config_of(model_dir), None).model
    stir(model)
    model.save(tmp_path / "saved")
    saved, base = (load_file(folder / "model.safetensors") for folder in (tmp_path / "saved", model_dir))
    assert {name: tensor.shape for name, tensor in saved.items()} == {n: tensor.shape for n, tensor in base.items()}
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    expected = score_rows(model, kept_batch(), temperature=1.0).logprobs_N
    loaded = score_rows(PolicyModel.load(tmp_path / "saved"), kept_batch(), temperature=1.0).logprobs_N
    torch.testing.assert_close(loaded, expected, rtol=0, atol=1e-4)
    before = score_rows(PolicyModel.load(model_dir), kept_batch(), temperature=1.0).logprobs_N
    assert (expected - before).abs().max() > 1e-2
    # Saving left no rounding behind in the frozen weights.
    model.save(tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in saved.items())


def test_the_reference_is_the_policy_without_its_adapter(model_dir: Path) -> None:
    training = load_training(config_of(model_dir), None)
    assert isinstance(training.reference, BaseReference)
    stir(training.model)
    with_adapter = score_rows(training.model, kept_batch(), temperature=0.7).logprobs_N
    found = training.reference.logprobs(kept_batch(), temperature=0.7)
    assert torch.equal(found, score_rows(PolicyModel.load(model_dir), kept_batch(), temperature=0.7).logprobs_N)
    assert torch.equal(score_rows(training.model, kept_batch(), temperature=0.7).logprobs_N, with_adapter)
    assert not torch.equal(found, with_adapter)


def test_layers_are_chosen_by_name_and_unknown_ones_refused(model_dir: Path) -> None:
    model = load_training(config_of(model_dir, targets=("q_proj", "v_proj")), None).model
    assert len(model.trainable) == 2 * 2 * 2
    with pytest.raises(ConfigError, match=r"learner\.lora\.targets"):
        load_training(config_of(model_dir, targets=("nothing",)), None)


def test_an_adapter_goes_on_beside_the_weights_it_was_trained_with_only(tmp_path: Path, model_dir: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(model_dir, base)
    training = load_training(config_of(base), None)
    stir(training.model)
    state = TrainerState(run_id="run", training_step=1, batches_consumed=1)
    save_checkpoint(tmp_path, state=state, model=training.model, optimizer=training.optimizer, num_batches=9, keep=2)
    (found,) = find_checkpoints(tmp_path)
    again = load_training(config_of(base), load_state(found, HistoryOptions())).model
    for (name, ours), (_, theirs) in zip(training.model.trainable, again.trainable, strict=True):
        assert torch.equal(ours, theirs), name
    with pytest.raises(CheckpointError, match="another rank or of other layers"):
        load_training(config_of(base, rank=2), load_state(found, HistoryOptions()))
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"] += 1.0
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    changed = load_training(config_of(base), None).model
    with pytest.raises(ConfigError, match="are not those that the adapter"):
        restore_adapter(found.path, changed)


def test_a_run_with_an_adapter_publishes_whole_weights_and_resumes(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    changes: dict[str, dict[str, object]] = {"lora": {"rank": 4}, "reference": {"kl": "loss"}}
    config = small_config(tmp_path / "run", model_dir, task_path, **changes)
    assert train_with_pool(config)[0] == "COMPLETED"
    found = find_checkpoints(config.run_dir / "checkpoints")
    final = load_file(found[-1].path / "model.safetensors")
    published = load_file(config.run_dir / "weights" / "v000003" / "model.safetensors")
    assert all(torch.equal(tensor, published[name]) for name, tensor in final.items())
    rows = rows_of(config.run_dir)
    assert rows[0]["learner/reference/kl_k3"] == 0.0
    assert float(str(rows[-1]["learner/reference/kl_k3"])) > 0.0
    older = next(each for each in found if each.training_step == 1)
    train_with_pool(config, resume=str(older.path))
    again = load_file(find_checkpoints(config.run_dir / "checkpoints")[-1].path / "model.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in final.items())
    audited(config.run_dir)
