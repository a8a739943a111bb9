"""A saved policy is whole, whatever became of the folder it was loaded from."""

from __future__ import annotations

import shutil
from pathlib import Path

from learner.model import PolicyModel


def test_the_tokenizer_travels_with_the_weights_after_its_checkpoint_was_pruned(
    model_dir: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(model_dir, checkpoint)
    model = PolicyModel.load(checkpoint)
    shutil.rmtree(checkpoint)
    model.save(tmp_path / "weights")
    assert (tmp_path / "weights" / "tokenizer.json").read_bytes() == (model_dir / "tokenizer.json").read_bytes()
