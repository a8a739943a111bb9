"""Catastrophic-token veto: one token that the proximal policy would hardly sample takes its trajectory out."""

import math
from dataclasses import replace

from learner.layout import sum_by
from learner.losses.correction import Correction, CorrectionInputs
from learner.losses.ratio import log_ratio


def vetoed(correction: Correction, inputs: CorrectionInputs, threshold: float) -> Correction:
    """The correction with all trajectories out of the mask that hold a masked token of weight below `threshold`."""
    logs_N = log_ratio(inputs.proximal_logprobs_N, inputs.behavior_logprobs_N)
    is_hopeless_N = inputs.mask_N.bool() & (logs_N < math.log(threshold))
    index_N = inputs.layout.trajectory_index_N
    num_hopeless_J = sum_by(is_hopeless_N.long(), index_N, inputs.layout.num_trajectories)
    return replace(correction, mask_N=correction.mask_N.bool() & (num_hopeless_J == 0)[index_N])
