"""Advantage estimators, one per file.

A group estimator maps shaped returns and group indices of the kept trajectories to one advantage per trajectory; a turn
estimator (`learner.advantages.turn_inputs`) gives one per turn; one with a critic (`learner.advantages.value_based`)
gives one per token. A new one is a new file and an entry here, or, where it has settings, in
`learner.advantage_options`. What reshapes advantages per token afterwards are files of their own, too.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from learner.advantages.dr_grpo import dr_grpo
from learner.advantages.grpo import grpo
from learner.advantages.reinforce import reinforce
from learner.advantages.rloo import rloo
from learner.advantages.value_based import VALUE_ADVANTAGES

__all__ = ["GROUP_ADVANTAGES", "VALUE_ADVANTAGES", "GroupAdvantage"]

GroupAdvantage = Callable[[Tensor, Tensor], Tensor]
"""(returns_J, group_index_J) -> advantages_J; a group's result depends on that group only and not on the order."""

GROUP_ADVANTAGES: Mapping[str, GroupAdvantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce": reinforce,
}
