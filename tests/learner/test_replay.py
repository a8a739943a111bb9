"""Training from a ledger, without pools or engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from learner.checkpoint_files import find_checkpoints
from learner.config import LearnConfig
from learner.replay import replay
from longturn.errors import ConfigError
from tests.support.learner_run import rows_of, small_config, train_with_pool
from tests.support.scripted_pool import GiveUp, Member, made_up


def final_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(find_checkpoints(run_dir / "checkpoints")[-1].path / "model.safetensors")


def elsewhere(config: LearnConfig, run_dir: Path, **batch: object) -> LearnConfig:
    return config.model_copy(update={"run_dir": run_dir, "batch": config.batch.model_copy(update=batch)})


METHODS: dict[str, dict[str, dict[str, object]]] = {
    "default": {"batch": {"num_batches": 4, "max_policy_lag": 1}},
    "stateful": {
        "batch": {"num_batches": 4, "max_policy_lag": 2},
        "snr": {"filter": "streaming", "epsilon": 0.0},
        "off_policy": {"mode": "log_linear"},
        "advantage": {"estimator": "gae"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_replay_gives_the_weights_of_the_run_to_the_bit(
    tmp_path: Path, model_dir: Path, task_path: Path, name: str
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, **METHODS[name])
    train_with_pool(config)
    again = elsewhere(config, tmp_path / "again")
    assert replay(again, config.run_dir, resume="auto") == "COMPLETED"
    expected = final_weights(config.run_dir)
    for tensor_name, tensor in final_weights(again.run_dir).items():
        assert torch.equal(tensor, expected[tensor_name]), tensor_name
    for first, second in zip(rows_of(config.run_dir), rows_of(again.run_dir), strict=True):
        assert first["outcome"] == second["outcome"]
        assert first.get("learner/loss/total") == second.get("learner/loss/total")
    assert not (again.run_dir / "ledger.db").exists()


def test_a_replay_goes_on_from_its_checkpoint_and_ends_with_the_ledger(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    def script(member: Member) -> object:
        """One slot of the second batch is closed: the batch is short, in the replay as in the run."""
        return GiveUp(reason="STEP_TIMEOUT") if member.assignment.group_id.startswith("t000002.") else made_up(member)

    config = small_config(tmp_path / "run", model_dir, task_path)
    train_with_pool(config, script)  # type: ignore[arg-type]
    again = elsewhere(config, tmp_path / "again")
    half = elsewhere(config, again.run_dir, num_batches=1)
    assert replay(half, config.run_dir / "ledger.db", resume="auto") == "COMPLETED"
    assert replay(again, config.run_dir, resume="auto") == "COMPLETED"
    longer = elsewhere(config, again.run_dir, num_batches=9)
    assert replay(longer, config.run_dir, resume="auto") == "LEDGER_ENDED"
    expected = final_weights(config.run_dir)
    assert all(torch.equal(tensor, expected[key]) for key, tensor in final_weights(again.run_dir).items())


def test_what_a_replay_cannot_do_is_refused(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, batch={"num_batches": 1})
    train_with_pool(config)
    with pytest.raises(ConfigError, match="would write into the run it reads"):
        replay(config, config.run_dir, resume="auto")
    other = elsewhere(config, tmp_path / "again", groups_per_step=1)
    with pytest.raises(ConfigError, match=r"learner\.batch\.groups_per_step is 1, the ledger was recorded with 2"):
        replay(other, config.run_dir, resume="auto")
    with pytest.raises(ConfigError, match="does not exist"):
        replay(other, tmp_path / "nowhere.db", resume="auto")
