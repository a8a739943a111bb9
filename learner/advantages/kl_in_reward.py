"""Reference KL in the reward: a trajectory is paid less for each token that strays. N tokens, J trajectories."""

from torch import Tensor

from learner.layout import TokenLayout, sum_by
from learner.losses.kl import KL_ESTIMATORS, KlOptions


def returns_with_kl(
    returns_J: Tensor, logprobs_N: Tensor, reference_logprobs_N: Tensor, layout: TokenLayout, options: KlOptions
) -> Tensor:
    """R - coefficient * sum of the estimate over the trained tokens; for advantages, not for the filter."""
    costs_N = token_costs(logprobs_N, reference_logprobs_N, options)
    return returns_J - sum_by(costs_N, layout.trajectory_index_N, layout.num_trajectories).to(returns_J.dtype)


def token_costs(logprobs_N: Tensor, reference_logprobs_N: Tensor, options: KlOptions) -> Tensor:
    """What each token is charged."""
    return options.coefficient * KL_ESTIMATORS[options.kind](logprobs_N, reference_logprobs_N)
