"""A scripted engine with a real model behind it: samples token by token and reports exact logprobs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from longturn.records import Trajectory, Turn
from tests.support.scripted_pool import Member, Script, made_up


def load(folder: Path) -> PreTrainedModel:
    """A model ready to sample from."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def resample(trajectory: Trajectory, model: PreTrainedModel, member: Member) -> Trajectory:
    """The trajectory with completions that the model sampled at the member's temperature, from the member's seed."""
    order = random.Random(f"{member.assignment.group_id}/{member.sampling_seed}")
    context: list[int] = []
    turns: list[Turn] = []
    for turn in trajectory.turns:
        context.extend(turn.prompt_ids)
        completion: list[int] = []
        logprobs: list[float] = []
        for _ in turn.completion_ids:
            logits = model(torch.tensor([context])).logits[0, -1].float() / member.temperature
            distribution = torch.log_softmax(logits, dim=-1)
            token = order.choices(range(len(logits)), weights=distribution.exp().tolist())[0]
            completion.append(token)
            logprobs.append(distribution[token].item())
            context.append(token)
        turns.append(replace(turn, completion_ids=tuple(completion), behavior_logprobs=tuple(logprobs)))
    return replace(trajectory, turns=tuple(turns))


def sampling_script(model_of_version: Callable[[int], PreTrainedModel]) -> Script:
    """A pool's script: made-up observations, completions by the model of the member's version."""

    def play(member: Member) -> Trajectory:
        return resample(made_up(member), model_of_version(member.policy_version), member)

    return play


def from_weights_dir(weights_dir: Path) -> Callable[[int], PreTrainedModel]:
    """Models by version from the folders the learner publishes."""
    return lru_cache(maxsize=4)(lambda version: load(weights_dir / f"v{version:06d}"))
