"""Proximal logprobs without a forward pass (A-3PO): linear between behaviour and current in log space. N tokens."""

from torch import Tensor


def log_linear_proximal(
    behavior_logprobs_N: Tensor,
    current_logprobs_N: Tensor,
    *,
    behavior_step_N: Tensor,
    proximal_step: int,
    current_step: int,
) -> Tensor:
    """log b + a (log pi - log b), a = (proximal - behaviour) / (current - behaviour) in steps; 1 for fresh tokens."""
    behavior_step_N = behavior_step_N.to(current_logprobs_N.dtype)
    distance_N = (current_step - behavior_step_N).clamp(min=1)
    share_N = ((proximal_step - behavior_step_N) / distance_N).masked_fill(behavior_step_N >= current_step, 1.0)
    return behavior_logprobs_N + share_N * (current_logprobs_N.detach() - behavior_logprobs_N)
