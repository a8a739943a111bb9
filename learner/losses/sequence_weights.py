"""One weight per trajectory: the product of its tokens' weights, or their geometric mean. N tokens, J trajectories."""

from torch import Tensor

from learner.layout import sum_by
from learner.losses.correction import Correction, CorrectionInputs, CorrectionLimits, behavior_weights
from learner.losses.ratio import LOG_RATIO_LIMIT, log_ratio


def sequence_tis(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """Every token carries its trajectory's product, truncated at the cap."""
    return _correction(inputs, _product_J(inputs).clamp(max=limits.cap), inputs.mask_N)


def sequence_mis(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """Every token carries its trajectory's product; trajectories outside [lower, upper] leave the mask."""
    product_J = _product_J(inputs)
    return _correction(inputs, product_J, _inside(limits, inputs, product_J))


def geometric_rejection(limits: CorrectionLimits, inputs: CorrectionInputs) -> Correction:
    """Token weights truncated at the cap; trajectories with a geometric mean outside [lower, upper] leave the mask."""
    weights_N = behavior_weights(inputs.proximal_logprobs_N, inputs.behavior_logprobs_N).clamp(max=limits.cap)
    mask_N = _inside(limits, inputs, geometric_means(inputs))
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=weights_N, mask_N=mask_N)


def geometric_means(inputs: CorrectionInputs) -> Tensor:
    """exp of the mean log-weight over each trajectory's masked tokens; 1 for a trajectory without any."""
    counts_J = sum_by(_mask(inputs), inputs.layout.trajectory_index_N, inputs.layout.num_trajectories)
    return (_log_sum_J(inputs) / counts_J.clamp(min=1)).exp()


def _product_J(inputs: CorrectionInputs) -> Tensor:
    return _log_sum_J(inputs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _log_sum_J(inputs: CorrectionInputs) -> Tensor:
    logs_N = log_ratio(inputs.proximal_logprobs_N, inputs.behavior_logprobs_N) * _mask(inputs)
    return sum_by(logs_N, inputs.layout.trajectory_index_N, inputs.layout.num_trajectories)


def _mask(inputs: CorrectionInputs) -> Tensor:
    return inputs.mask_N.to(inputs.proximal_logprobs_N.dtype)


def _inside(limits: CorrectionLimits, inputs: CorrectionInputs, weights_J: Tensor) -> Tensor:
    is_inside_J = (weights_J >= limits.lower) & (weights_J <= limits.upper)
    return inputs.mask_N.bool() & is_inside_J[inputs.layout.trajectory_index_N]


def _correction(inputs: CorrectionInputs, weights_J: Tensor, mask_N: Tensor) -> Correction:
    weights_N = weights_J[inputs.layout.trajectory_index_N]
    return Correction(anchor_logprobs_N=inputs.proximal_logprobs_N, weights_N=weights_N, mask_N=mask_N)
