"""From demonstrations to a policy folder that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from learner.imitation.command import run_imitation
from learner.imitation.config import ImitateConfig, ModelConfig, TokenizerConfig
from learner.imitation.muon import orthogonalise
from learner.imitation.rows import RowBuilder, texts_of
from learner.imitation.tokenizer import read_tokenizer, train_tokenizer
from longturn.disk import DiskError
from longturn.errors import ConfigError, LongturnError
from longturn.records import EpisodeStatus, Task, Trajectory, Turn
from longturn.tag_format import TAGS
from longturn.trajectory_file import TrajectoryWriter
from tests.support.full_disk import largest_file

_COLOURS = ("red", "green", "blue")
_TINY = ImitateConfig(
    steps=200,
    short_steps=20,
    short_tokens=32,
    held_out_episodes=3,
    tokenizer=TokenizerConfig(vocab_size=300),
    model=ModelConfig(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=32, max_position_embeddings=256),
)


def _demonstration(index: int) -> Trajectory:
    """Repeat the colour that is shown; the middle turn is a mistake that must not be imitated."""
    colours = [_COLOURS[(index + turn) % 3] for turn in range(4)]
    turns = tuple(
        Turn(
            action="say red" if turn == 1 else f"say {colours[turn]}",
            reasoning=f"it is {colours[turn]}",
            observation=f"The lamp is {colours[(turn + 1) % 4]}.",
            action_valid=True,
            is_trained=turn != 1,
        )
        for turn in range(4)
    )
    return Trajectory(
        task=Task(environment="lamp", task_id=str(index)),
        seed=index,
        initial_observation=f"The lamp is {colours[0]}.",
        turns=turns,
        status=EpisodeStatus.TERMINATED,
        episode_return=1.0,
        score=1.0,
        success=True,
    )


@pytest.fixture
def demonstrations(tmp_path: Path) -> Path:
    path = tmp_path / "demonstrations.bin"
    with TrajectoryWriter(path) as writer:
        for index in range(12):
            writer.write(_demonstration(index))
    return path


def test_rows_train_reasoning_and_action_but_not_the_action_of_a_mistake() -> None:
    trajectory = _demonstration(0)
    tokenizer = train_tokenizer(texts_of([trajectory]), _TINY.tokenizer)
    row = RowBuilder(tokenizer).build(trajectory)
    trained = tokenizer.decode(
        [index for index, is_trained in zip(row.ids, row.response_mask, strict=True) if is_trained],
        skip_special_tokens=False,
    )
    assert trained == (
        "it is red</think><action>say red</action>"
        "it is green</think><action>"
        "it is blue</think><action>say blue</action>"
        "it is red</think><action>say red</action>"
    )
    assert tokenizer.decode(list(row.ids), skip_special_tokens=False).startswith("<obs>The lamp is red.<think>it is")
    completions = [
        tokenizer.decode(list(row.ids[place.start : place.end]), skip_special_tokens=False) for place in row.completions
    ]
    assert completions == [f"it is {colour}</think><action>say {colour}" for colour in ("red", "blue", "red")]


def test_tags_are_single_tokens_and_text_survives_the_round_trip() -> None:
    tokenizer = train_tokenizer(["go north", "You can't."], _TINY.tokenizer)
    assert all(len(tokenizer.encode(tag).ids) == 1 for tag in TAGS)
    text = "A café,\n\nodd  spaces and bytes \x07."
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_written_folder_loads_in_transformers_and_imitates(demonstrations: Path, tmp_path: Path) -> None:
    config = _TINY.model_copy(update={"out": tmp_path / "policy", "gate_min_probability": 0.8})
    run_imitation(demonstrations, config)
    tokenizer = AutoTokenizer.from_pretrained(config.out)
    model = AutoModelForCausalLM.from_pretrained(config.out)
    prompt = "<obs>The lamp is green.<think>it is green</think><action>"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    assert ids[0].tolist() == read_tokenizer(config.out).encode(prompt).ids
    said = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(said).startswith("say green</action>")
    summary = json.loads((config.out / "imitation_summary.json").read_text())
    assert summary["action_probability"]["say"]["mean"] > 0.8


def test_the_gate_refuses_what_was_not_learned_and_names_the_setting(demonstrations: Path, tmp_path: Path) -> None:
    config = _TINY.model_copy(update={"out": tmp_path / "policy", "steps": 1})
    with pytest.raises(LongturnError, match=r"imitate\.steps") as refused:
        run_imitation(demonstrations, config)
    assert refused.value.reason == "GATE_FAILED"
    assert not (config.out / "model.safetensors").exists()


def test_too_few_demonstrations_are_refused(demonstrations: Path, tmp_path: Path) -> None:
    config = _TINY.model_copy(update={"out": tmp_path / "policy", "held_out_episodes": 12})
    with pytest.raises(ConfigError, match=r"warmstart\.num_episodes"):
        run_imitation(demonstrations, config)


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(demonstrations: Path, tmp_path: Path) -> None:
    small = _TINY.model_copy(update={"out": tmp_path / "small", "steps": 1, "gate_min_probability": 0.0})
    run_imitation(demonstrations, small)
    tokenizer = train_tokenizer([str(number) for number in range(2000)], TokenizerConfig(vocab_size=600))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = small.model_copy(update={"base_model": small.out, "tokenizer_path": tmp_path / "tokenizer.json"})
    with pytest.raises(ConfigError, match=r"do not belong together"):
        run_imitation(demonstrations, config)


def test_a_tokenizer_without_tags_is_refused(demonstrations: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}})
    )
    with pytest.raises(ConfigError, match="<obs>"):
        run_imitation(demonstrations, _TINY.model_copy(update={"tokenizer_path": path, "out": tmp_path / "x"}))


def test_a_given_tokenizer_without_padding_and_end_makes_no_tag_of_it_one(demonstrations: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [], trainers.BpeTrainer(special_tokens=list(TAGS), initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    out = tmp_path / "policy"
    settings = {"tokenizer_path": tmp_path / "tokenizer.json", "out": out, "steps": 1, "gate_min_probability": 0.0}
    run_imitation(demonstrations, _TINY.model_copy(update=settings))
    assert tokenizer.token_to_id("<obs>") == 0
    for name in ("config.json", "generation_config.json"):
        facts = json.loads((out / name).read_text())
        assert (facts.get("eos_token_id"), facts.get("pad_token_id")) == (None, None)


def test_a_policy_that_finds_no_room_is_no_policy(demonstrations: Path, tmp_path: Path) -> None:
    out = tmp_path / "policy"
    config = _TINY.model_copy(update={"out": out, "steps": 1, "gate_min_probability": 0.0})
    with largest_file(20_000), pytest.raises(DiskError, match="raise the limit of a file") as error:
        run_imitation(demonstrations, config)
    assert str(out) in str(error.value)
    assert sorted(path.name for path in out.iterdir()) == ["imitation.jsonl", "imitation_summary.json"]


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    matrix = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.min() > 0.6
    assert values.max() < 1.3
