"""Mutual information between prompt and reasoning, from a matrix of cross scores (RAGEN-2, sections 2.1 and 2.2).

S samples of reasoning, P prompts (columns). `logprob_sums_SP[s, j]` is the summed teacher-forced logprob of sample s
under prompt j. All estimates are in nats. MI of the `seq` variant cannot exceed log P, and chance depends on P: never
compare different P.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_STD_EPSILON = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossScores:
    """The score matrix, the length of each sample in tokens and the column it was sampled under."""

    logprob_sums_SP: Tensor
    num_tokens_S: Tensor
    column_S: Tensor
    prompt_keys: tuple[Hashable, ...] | None = None
    """Equal keys mark columns with equal prompts, which retrieval cannot tell apart; all distinct when absent."""

    def __post_init__(self) -> None:
        num_samples, num_prompts = self.logprob_sums_SP.shape
        if self.num_tokens_S.shape != (num_samples,) or self.column_S.shape != (num_samples,):
            raise ValueError(f"{num_samples} samples need as many lengths and columns")
        if not num_samples or not num_prompts:
            raise ValueError("cross scores need at least one sample and one prompt")
        if int(self.num_tokens_S.min()) < 1:
            raise ValueError("empty reasoning has no score; leave it out")
        if self.prompt_keys is not None and len(self.prompt_keys) != num_prompts:
            raise ValueError(f"{len(self.prompt_keys)} prompt keys for {num_prompts} prompts")

    @property
    def num_prompts(self) -> int:
        return self.logprob_sums_SP.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiEstimate:
    mi: float
    h_z_given_x: float
    """An entropy only if the scorer sampled the reasoning; an upper bound (cross-entropy) otherwise."""
    h_z: float
    marginal_std: float
    """Population standard deviation of the samples' marginals."""
    z_score: float
    """Mean of (matched - marginal) / (marginal_std + 1e-3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """How often the own prompt is the likeliest; columns that hold the same prompt count as one."""

    accuracy: float
    chance: float
    recall_at: dict[int, float]
    chance_at: dict[int, float]

    @property
    def above_chance(self) -> float:
        return self.accuracy - self.chance


def estimate(scores: CrossScores, variant: str = "seq") -> MiEstimate:
    """MI, H(Z|X) and H(Z) of one variant: seq | per_token_paper | per_token_repo."""
    matched_S, marginal_S = matched_and_marginal(scores, variant)
    gain_S = matched_S - marginal_S
    std = marginal_S.std(correction=0).item()
    return MiEstimate(
        mi=gain_S.mean().item(),
        h_z_given_x=-matched_S.mean().item(),
        h_z=-marginal_S.mean().item(),
        marginal_std=std,
        z_score=z_score(gain_S.mean().item(), std),
    )


def matched_and_marginal(scores: CrossScores, variant: str) -> tuple[Tensor, Tensor]:
    """Per sample: logprob under its own prompt and under the mixture of all prompts, its own included (float64)."""
    if variant not in MARGINALS:
        raise ValueError(f"unknown variant {variant!r}; known: {', '.join(MARGINALS)}")
    sums_SP, lengths_S = scores.logprob_sums_SP.double(), scores.num_tokens_S.double()
    matched_S = sums_SP.gather(1, scores.column_S[:, None])[:, 0]
    return (matched_S if variant == "seq" else matched_S / lengths_S), MARGINALS[variant](sums_SP, lengths_S)


def z_score(mean_gain: float, marginal_std: float) -> float:
    """MI in units of the marginals' spread (pass the moving average of the spread for the EMA form)."""
    return mean_gain / (marginal_std + _STD_EPSILON)


def retrieval(scores: CrossScores, ks: Sequence[int] = (2, 4, 8)) -> Retrieval:
    """Top-1 accuracy (ties go to the lowest column) and recall among the best k."""
    ranks_S = _rank_of_own_prompt(scores)
    chance = _equal_prompts_SP(scores).double().mean().item()
    return Retrieval(
        accuracy=(ranks_S < 1).double().mean().item(),
        chance=chance,
        recall_at={k: (ranks_S < k).double().mean().item() for k in ks},
        chance_at={k: min(1.0, k * chance) for k in ks},
    )


def _rank_of_own_prompt(scores: CrossScores) -> Tensor:
    """Number of columns that come before the first one that holds the own prompt."""
    # Stable: equal scores, as in a full template collapse, go to the lowest column.
    order_SP = scores.logprob_sums_SP.double().argsort(dim=1, descending=True, stable=True)
    return _equal_prompts_SP(scores).gather(1, order_SP).int().argmax(dim=1)


def _equal_prompts_SP(scores: CrossScores) -> Tensor:
    """Which columns hold the prompt each sample was sampled under."""
    keys = scores.prompt_keys or range(scores.num_prompts)
    number_by_key = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    number_P = torch.tensor([number_by_key[key] for key in keys], device=scores.column_S.device)
    return number_P[scores.column_S][:, None] == number_P[None]


def _mixture(scores_SP: Tensor) -> Tensor:
    return scores_SP.logsumexp(dim=1) - math.log(scores_SP.shape[1])


MARGINALS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "seq": lambda sums_SP, lengths_S: _mixture(sums_SP),
    "per_token_paper": lambda sums_SP, lengths_S: _mixture(sums_SP) / lengths_S,
    "per_token_repo": lambda sums_SP, lengths_S: _mixture(sums_SP / lengths_S[:, None]),
}
"""Logprob under the mixture. The released code divides by the length first: that is not a mixture likelihood."""
