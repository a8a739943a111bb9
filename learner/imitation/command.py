"""`longturn learn --imitate FILE`: from recorded demonstrations to a policy folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from learner.imitation.config import ImitateConfig
from learner.imitation.gate import KindProbability, action_probabilities, check_gate
from learner.imitation.model import load_model, make_model
from learner.imitation.policy_folder import write_policy
from learner.imitation.rows import DemonstrationRow, RowBuilder, texts_of
from learner.imitation.tokenizer import EOS, PAD, read_tokenizer, train_tokenizer
from learner.imitation.train import imitate_rows
from longturn.completion import MARKER, write_marker
from longturn.disk import naming, write_json, writing_to
from longturn.errors import ConfigError
from longturn.metrics import MetricsFile
from longturn.records import Trajectory
from longturn.trajectory_file import read_trajectories

logger = logging.getLogger(__name__)


def run_imitation(demonstrations: Path, config: ImitateConfig) -> None:
    """Train a policy on the file's demonstrations and write it to `config.out`, once it has passed the gate."""
    torch.set_num_threads(config.num_threads)
    transformers_logging.disable_progress_bar()
    with naming(config.out):
        # What is written below is whole only once it is marked anew.
        (config.out / MARKER).unlink(missing_ok=True)
    trajectories = list(read_trajectories(demonstrations))
    if len(trajectories) <= config.held_out_episodes:
        raise ConfigError(
            f"{demonstrations} holds {len(trajectories)} demonstrations, imitate.held_out_episodes keeps "
            f"{config.held_out_episodes} of them; record more (warmstart.num_episodes)"
        )
    tokenizer = _tokenizer(trajectories, config)
    model = _model(tokenizer, config)
    rows = [RowBuilder(tokenizer).build(trajectory) for trajectory in trajectories]
    _check_lengths(rows, model)
    trained, held_out = _split(rows, config.held_out_episodes)
    with MetricsFile(config.out / "imitation.jsonl") as metrics:
        loss = imitate_rows(model, trained, config, metrics)
    found = action_probabilities(model, held_out)
    _write_summary(config, trajectories, rows, loss, found)
    check_gate(found, config)
    write_policy(model, tokenizer, config.out)
    with writing_to(config.out):
        write_marker(config.out, {})
    logger.info("policy written", extra={"folder": str(config.out), "loss": round(loss, 4)})


def _tokenizer(trajectories: Sequence[Trajectory], config: ImitateConfig) -> Tokenizer:
    path = config.tokenizer_path or config.base_model
    if path is not None:
        return read_tokenizer(path)
    return train_tokenizer(texts_of(trajectories), config.tokenizer)


def _model(tokenizer: Tokenizer, config: ImitateConfig) -> PreTrainedModel:
    num_ids = tokenizer.get_vocab_size(with_added_tokens=True)
    if config.base_model is not None:
        return load_model(config.base_model, num_ids=num_ids)
    return make_model(
        config.model,
        vocab_size=num_ids,
        seed=config.seed,
        pad_id=tokenizer.token_to_id(PAD),
        eos_id=tokenizer.token_to_id(EOS),
    )


def _split(
    rows: Sequence[DemonstrationRow], num_held_out: int
) -> tuple[list[DemonstrationRow], list[DemonstrationRow]]:
    """Keep rows from all over the file: it is ordered by task, and its end may hold the longest tasks only."""
    held_out = {index * len(rows) // num_held_out for index in range(num_held_out)}
    return (
        [row for index, row in enumerate(rows) if index not in held_out],
        [row for index, row in enumerate(rows) if index in held_out],
    )


def _check_lengths(rows: Sequence[DemonstrationRow], model: PreTrainedModel) -> None:
    longest = max(len(row.ids) for row in rows)
    limit = model.config.max_position_embeddings
    if longest > limit:
        raise ConfigError(
            f"a demonstration has {longest} tokens, the model reads at most {limit}; raise "
            "imitate.model.max_position_embeddings or lower warmstart.max_turns"
        )


def _write_summary(
    config: ImitateConfig,
    trajectories: Sequence[Trajectory],
    rows: Sequence[DemonstrationRow],
    loss: float,
    found: Sequence[KindProbability],
) -> None:
    num_turns = sum(len(trajectory.turns) for trajectory in trajectories)
    summary = {
        "demonstrations": len(trajectories),
        "demonstrated_success": sum(trajectory.success for trajectory in trajectories) / len(trajectories),
        "turns_mean": num_turns / len(trajectories),
        "tokens_per_turn": sum(len(row.ids) for row in rows) / num_turns,
        "longest_row_tokens": max(len(row.ids) for row in rows),
        "loss": loss,
        "action_probability": {kind.kind: {"mean": kind.probability, "turns": kind.num_turns} for kind in found},
        "seed": config.seed,
    }
    write_json(config.out / "imitation_summary.json", summary)
    logger.info("imitated", extra={"loss": round(loss, 4), **{f"p_{k.kind}": round(k.probability, 3) for k in found}})
