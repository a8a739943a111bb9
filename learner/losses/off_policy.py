"""How the loss corrects for data that an older policy, or another engine, sampled: the corrections by name.

A new mode is a new file and an entry in `CORRECTIONS`. Weights are products over tokens in the sequence modes, which
mean nothing across policy versions beyond a few hundred tokens: prefer token weights with the geometric bound there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from learner.losses.correction import (
    Correction,
    CorrectionInputs,
    CorrectionLimits,
    CorrectionRule,
    behavior_weights,
)
from learner.losses.decoupled import decoupled, decoupled_in_update
from learner.losses.log_linear_proximal import log_linear
from learner.losses.plain_ratio import behaviour_ratio, none
from learner.losses.sequence_weights import geometric_rejection, sequence_mis, sequence_tis
from learner.losses.token_bounds import icepop, token_rejection
from learner.losses.veto import vetoed

__all__ = [
    "CORRECTIONS",
    "IN_UPDATE",
    "Correction",
    "CorrectionInputs",
    "OffPolicyOptions",
    "behavior_weights",
    "correct",
    "correct_in_update",
]

_LEAST_VETO = 1e-8
"""Log-ratios are clamped at -20: a smaller threshold would never be crossed."""

CORRECTIONS: Mapping[str, CorrectionRule] = {
    "decoupled": decoupled,
    "behaviour_ratio": behaviour_ratio,
    "none": none,
    "icepop": icepop,
    "token_rejection": token_rejection,
    "sequence_tis": sequence_tis,
    "sequence_mis": sequence_mis,
    "geometric_rejection": geometric_rejection,
    "log_linear": log_linear,
}

IN_UPDATE: Mapping[str, CorrectionRule] = {"decoupled": decoupled_in_update, "log_linear": log_linear}
"""Modes that find anchor and weight in the update's own forward pass: the same numbers without a pass before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyOptions(CorrectionLimits):
    """The mode and its numbers."""

    mode: str = "decoupled"
    """A name in CORRECTIONS; `none` ignores staleness and is biased unless the data is on-policy."""
    veto: float | None = None
    """Weight below which one token takes its whole trajectory out of the mask; absent: no veto."""

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which zero-argument super() does not find.
        super(OffPolicyOptions, self).__post_init__()
        if self.mode not in CORRECTIONS:
            raise ValueError(f"unknown off-policy mode {self.mode!r}; known: {', '.join(CORRECTIONS)}")
        if self.veto is not None and not _LEAST_VETO <= self.veto < 1:
            raise ValueError(f"veto must be in [{_LEAST_VETO}, 1), got {self.veto}")

    @property
    def is_in_update(self) -> bool:
        """Whether anchor, weight and mask need no forward pass before the update's own."""
        return self.mode in IN_UPDATE and self.over_cap == "truncate" and self.veto is None


def correct(options: OffPolicyOptions, inputs: CorrectionInputs) -> Correction:
    """Apply the chosen mode, then the veto; all results are detached."""
    with torch.no_grad():
        correction = CORRECTIONS[options.mode](options, inputs)
        return correction if options.veto is None else vetoed(correction, inputs, options.veto)


def correct_in_update(options: OffPolicyOptions, inputs: CorrectionInputs) -> Correction:
    """The same where the update's own forward pass comes first; ValueError unless `options.is_in_update`."""
    if not options.is_in_update:
        raise ValueError(f"off-policy mode {options.mode} needs proximal logprobs before the update")
    return IN_UPDATE[options.mode](options, inputs)
