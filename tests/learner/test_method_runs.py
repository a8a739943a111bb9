"""Methods that carry something from step to step, in whole runs over real ZMQ and SQLite."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest
import torch
from safetensors.torch import load_file

from learner.checkpoint_files import find_checkpoints
from learner.config import LearnConfig
from tests.support.learner_run import audited, rows_of, small_config, train_with_pool

STATEFUL: dict[str, dict[str, object]] = {
    "snr": {"filter": "streaming", "epsilon": 0.0, "loss_scaling": "sqrt"},
    "epo": {"history": "ema", "history_scope": "turn", "kappa_high": 1.01, "smooth_coefficient": 1.0},
    "reference": {"kl": "loss"},
    "diagnostics": {"every": 0, "gradients_every": 2, "gradient_buckets": 2},
}


def column(config: LearnConfig, name: str) -> list[float]:
    values = [row[name] for row in rows_of(config.run_dir)]
    assert all(isinstance(value, int | float) for value in values), values
    return [float(str(value)) for value in values]


def final_weights(config: LearnConfig) -> dict[str, torch.Tensor]:
    return load_file(find_checkpoints(config.run_dir / "checkpoints")[-1].path / "model.safetensors")


def test_a_run_resumed_from_an_older_checkpoint_repeats_the_same_steps(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, **STATEFUL, batch={"num_batches": 4})
    assert train_with_pool(config)[0] == "COMPLETED"
    before, weights = rows_of(config.run_dir), final_weights(config)
    older = find_checkpoints(config.run_dir / "checkpoints")[1]
    assert older.training_step == 1
    train_with_pool(config, resume=str(older.path))
    again = rows_of(config.run_dir)[4:]
    assert [row["batch"] for row in again] == [1, 2, 3]
    same = [name for name in before[1] if not name.endswith("_s") and name not in ("run_epoch", "policy_version", "ts")]
    for first, second in zip(before[1:], again, strict=True):
        for name in same:
            if name.startswith("learner/") and name in first:
                assert second[name] == first[name], name
    for name, tensor in final_weights(config).items():
        assert torch.equal(tensor, weights[name]), name
    audited(config.run_dir)


def test_streaming_a_reference_and_gradient_norms_are_reported(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, **STATEFUL)
    train_with_pool(config)
    rows = rows_of(config.run_dir)
    for row in rows:
        assert 0.0 <= row["learner/snr_shadow/dropped_share"] <= 1.0  # type: ignore[operator]
        assert 0.89 < row["learner/snr_shadow/batch_rule/kept_mass"] <= 1.0  # type: ignore[operator]
        assert math.isfinite(row["learner/reference/kl_k3"])  # type: ignore[arg-type]
    assert rows[0]["learner/reference/kl_k3"] == 0.0
    assert rows[-1]["learner/reference/kl_k3"] > 0.0  # type: ignore[operator]
    measured = [row for row in rows if "learner/gradient/bucket_0/task_norm" in row]
    assert [row["training_step"] for row in measured] == [1, 3]
    for number in (0, 1):
        name = f"learner/gradient/bucket_{number}"
        assert measured[1][f"{name}/groups"] == 1
        assert 0.0 < measured[1][f"{name}/dominance"] < 1.0  # type: ignore[operator]
        assert measured[1][f"{name}/kl_norm"] > 0.0  # type: ignore[operator]
        assert measured[1][f"{name}/entropy_norm"] > 0.0  # type: ignore[operator]


def test_the_reference_is_the_mean_that_the_settings_ask_for_from_the_first_start_on(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    epo = {"history": "sliding", "history_window": 1}
    config = small_config(tmp_path / "run", model_dir, task_path, epo=epo)
    train_with_pool(config)
    entropies, rows = column(config, "learner/entropy/token_mean"), rows_of(config.run_dir)
    assert rows[0]["learner/epo/reference"] is None
    assert [row["learner/epo/reference"] for row in rows[1:]] == pytest.approx(entropies[:-1])


def test_a_kl_in_the_reward_changes_advantages_and_not_the_filter(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    plain = small_config(tmp_path / "plain", model_dir, task_path)
    paid = small_config(tmp_path / "paid", model_dir, task_path, reference={"kl": "reward", "coefficient": 1.0})
    for config in (plain, paid):
        train_with_pool(config)
    assert column(plain, "learner/group/kept") == column(paid, "learner/group/kept")
    assert rows_of(plain.run_dir)[0]["learner/gradient/norm"] == rows_of(paid.run_dir)[0]["learner/gradient/norm"]
    assert rows_of(plain.run_dir)[1]["learner/gradient/norm"] != rows_of(paid.run_dir)[1]["learner/gradient/norm"]


def test_the_interpolated_proximal_policy_is_read_from_the_update(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(
        tmp_path / "run",
        model_dir,
        task_path,
        batch={"num_batches": 4, "max_policy_lag": 1},
        off_policy={"mode": "log_linear"},
    )
    assert train_with_pool(config)[0] == "COMPLETED"
    rows = rows_of(config.run_dir)
    entropies = column(config, "learner/entropy/token_mean")
    assert [row["learner/epo/reference"] for row in rows[1:]] == pytest.approx(
        [fmean(entropies[:index]) for index in range(1, 4)]
    )
    assert max(column(config, "learner/lag/head")) == 1
    # Data of lag 1 is anchored at the policy that sampled it: only there does the ratio leave 1.
    for row in rows:
        spread = abs(float(str(row["learner/policy/ratio_p99"])) - 1.0)
        assert (spread > 1e-3) is (row["learner/lag/head"] == 1)


def test_an_adaptive_coefficient_grows_while_entropy_lies_below_its_target(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    control = {"method": "adaptive_coefficient", "target_entropy": 99.0, "coefficient_step": 1e-3}
    config = small_config(tmp_path / "run", model_dir, task_path, epo={"enabled": False}, entropy_control=control)
    train_with_pool(config)
    assert column(config, "learner/epo/scale") == pytest.approx([0.0, 1e-3, 2e-3])
