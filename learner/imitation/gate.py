"""Checks a warm start before reinforcement learning: has every kind of action been learned, the rare ones too?

A low loss does not show that. Where one turn in a hundred takes the coin, a policy that never takes it has a fine loss
and a success of zero, and then there is nothing to reinforce.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from learner.imitation.config import ImitateConfig
from learner.imitation.model import output_weight
from learner.imitation.rows import DemonstrationRow
from longturn.errors import LongturnError


@dataclass(frozen=True, slots=True, kw_only=True)
class KindProbability:
    """Mean probability that the policy gives to the demonstrated reasoning and action of one kind of turn."""

    kind: str
    probability: float
    num_turns: int


@torch.no_grad()
def action_probabilities(model: PreTrainedModel, rows: Sequence[DemonstrationRow]) -> list[KindProbability]:
    """Teacher-forced probability of reasoning and action together, mean over the turns of each kind.

    The reasoning counts because it decides: a policy that would take the coin after the right note, but writes another
    one, does not take it.
    """
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        hidden_TD = model.get_decoder()(input_ids=torch.tensor([row.ids]), use_cache=False).last_hidden_state[0]
        for place in row.completions:
            logits = hidden_TD[place.start - 1 : place.end - 1] @ output_weight(model).T
            logprobs = logits.float().log_softmax(-1)
            ids = torch.tensor(row.ids[place.start : place.end])
            by_kind[place.kind].append(float(logprobs.gather(1, ids[:, None]).sum().exp()))
    return [
        KindProbability(kind=kind, probability=sum(values) / len(values), num_turns=len(values))
        for kind, values in sorted(by_kind.items())
    ]


def check_gate(found: Sequence[KindProbability], config: ImitateConfig) -> None:
    """Raise LongturnError naming the kinds of action that were not learned and the settings that mend it."""
    for kind in found:
        if kind.num_turns >= config.gate_min_turns and kind.probability < config.gate_min_probability:
            raise LongturnError(
                f"the warm start gives actions of the kind {kind.kind!r} a probability of {kind.probability:.2f} on "
                f"{kind.num_turns} held-out turns, below imitate.gate_min_probability = {config.gate_min_probability}; "
                "raise imitate.steps, or record more demonstrations that hold this action (warmstart.num_episodes)",
                reason="GATE_FAILED",
            )
