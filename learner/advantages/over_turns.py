"""GRPO over turn rows, as EPO's released code has it: a long trajectory counts more in its group's mean and std."""

from torch import Tensor

from learner.advantages.standardise import standardise
from learner.advantages.turn_inputs import TurnInputs


def grpo_over_turns(inputs: TurnInputs) -> Tensor:
    """The trajectory's return against mean and std (ddof 1) over all turns of the group, each with that return."""
    layout = inputs.layout
    return standardise(inputs.returns_J[layout.trajectory_index_K], layout.group_index_K)
