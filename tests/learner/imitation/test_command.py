from __future__ import annotations

import json
from pathlib import Path

import pytest

from learner.imitation.command import run_imitation
from learner.imitation.config import ImitateConfig, ModelConfig, TokenizerConfig
from longturn.completion import file_digests, is_marked, verify_whole
from longturn.errors import ConfigError, LongturnError
from longturn.trajectory_file import TrajectoryWriter
from tests.learner.imitation.demonstrations import demonstration

MODEL = ModelConfig(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_position_embeddings=256)


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demonstrations") / "demonstrations.bin"
    with TrajectoryWriter(path) as writer:
        for seed in range(48):
            writer.write(demonstration(seed))
    return path


def settings(out: Path, **changes: object) -> ImitateConfig:
    values: dict[str, object] = {
        "out": out,
        "steps": 300,
        "short_steps": 150,
        "short_tokens": 64,
        "rows_per_step": 12,
        "held_out_episodes": 8,
        "model": MODEL,
        "tokenizer": TokenizerConfig(vocab_size=400),
    }
    return ImitateConfig.model_validate(values | changes)


@pytest.fixture(scope="module")
def policy(demonstrations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("policy")
    run_imitation(demonstrations, settings(out))
    return out


def test_the_summary_says_how_likely_each_kind_of_action_is(policy: Path) -> None:
    summary = json.loads((policy / "imitation_summary.json").read_text())
    assert summary["demonstrations"] == 48
    assert summary["action_probability"]["take"]["mean"] > 0.5
    assert summary["action_probability"]["take"]["turns"] == 8


def test_a_policy_is_marked_complete_once_it_is_whole(policy: Path) -> None:
    verify_whole(policy)
    assert "model.safetensors" in file_digests(policy)


def test_a_warm_start_that_learned_nothing_is_refused_and_names_its_setting(
    demonstrations: Path, tmp_path: Path
) -> None:
    with pytest.raises(LongturnError, match=r"'go'.*imitate\.steps") as raised:
        run_imitation(demonstrations, settings(tmp_path / "out", steps=1, short_steps=0))
    assert raised.value.reason == "GATE_FAILED"
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert not is_marked(tmp_path / "out")


def test_equal_seeds_give_equal_weights(demonstrations: Path, tmp_path: Path) -> None:
    short = {"steps": 3, "gate_min_probability": 0.0}
    for name in ("one", "two"):
        run_imitation(demonstrations, settings(tmp_path / name, **short))
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()


def test_a_given_policy_is_trained_further(policy: Path, demonstrations: Path, tmp_path: Path) -> None:
    run_imitation(demonstrations, settings(tmp_path / "out", base_model=policy, steps=2))
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_demonstration_longer_than_the_model_reads_is_refused(demonstrations: Path, tmp_path: Path) -> None:
    short = MODEL.model_copy(update={"max_position_embeddings": 64})
    with pytest.raises(ConfigError, match=r"imitate\.model\.max_position_embeddings"):
        run_imitation(demonstrations, settings(tmp_path / "out", model=short))
