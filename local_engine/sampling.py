"""Draws tokens and reports their logprobs; pure functions of logits, temperatures and counters.

A request's randomness is a counter-based hash of its key and the absolute position of the token, so a sample depends
neither on the batch it was drawn in nor on how often the request was interrupted: a prefix resumed with the same seed
continues the same stream.
"""

# R rows, V vocabulary, K alternatives

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MASK_64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # increment of the splitmix64 sequence (Steele, Lea, Flood 2014)
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What one step sampled, as plain lists over rows."""

    token_ids: list[int]
    logprobs: list[float]


def stream_key(seed: int, sample_index: int) -> int:
    """64-bit key of one sample's random stream."""
    return mix((seed + GOLDEN * (sample_index + 1)) & MASK_64)


def mix(value: int) -> int:
    """The splitmix64 finaliser on one integer."""
    value = ((value ^ (value >> 30)) * MIX_1) & MASK_64
    value = ((value ^ (value >> 27)) * MIX_2) & MASK_64
    return value ^ (value >> 31)


def uniforms(keys: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number strictly inside (0, 1) per row, with 48 random bits."""
    values = np.asarray(keys, dtype=np.uint64) + np.asarray(positions, dtype=np.uint64) * np.uint64(GOLDEN)
    for _ in range(2):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_1)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_2)
        values ^= values >> np.uint64(31)
    return ((values >> np.uint64(16)).astype(np.float64) + 0.5) * 2.0**-48


@torch.inference_mode()
def scaled_logprobs(logits_RV: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Log-softmax after temperature; temperature 0 leaves the logits as they are (SGLang's convention)."""
    if any(temperature not in (0.0, 1.0) for temperature in temperatures):
        divisors = [temperature or 1.0 for temperature in temperatures]
        logits_RV = logits_RV / torch.tensor(divisors, device=logits_RV.device)[:, None]
    return logits_RV.log_softmax(-1)


@torch.inference_mode()
def draw(logprobs_RV: Tensor, temperatures: Sequence[float], uniforms_R: NDArray[np.float64]) -> Draws:
    """Sample each row by inverting its cumulative distribution; rows of temperature 0 take the most likely token.

    A row with a non-finite logit comes back with a non-finite logprob.
    """
    is_greedy = [temperature == 0.0 for temperature in temperatures]
    if all(is_greedy):
        tokens_R = logprobs_RV.argmax(-1)
    else:
        tokens_R = invert_cumulative(logprobs_RV, uniforms_R)
        if any(is_greedy):
            greedy_R = torch.tensor(is_greedy, device=logprobs_RV.device)
            tokens_R = torch.where(greedy_R, logprobs_RV.argmax(-1), tokens_R)
    chosen_R = logprobs_RV.gather(1, tokens_R[:, None])[:, 0]
    return Draws(token_ids=tokens_R.tolist(), logprobs=chosen_R.tolist())


def invert_cumulative(logprobs_RV: Tensor, uniforms_R: NDArray[np.float64]) -> Tensor:
    """First token whose cumulative probability exceeds uniform x total; a token of probability 0 is never first."""
    cumulative_RV = logprobs_RV.exp().cumsum(-1).double()
    targets_R1 = torch.from_numpy(uniforms_R).to(logprobs_RV.device)[:, None] * cumulative_RV[:, -1:]
    tokens_R1 = torch.searchsorted(cumulative_RV, targets_R1, right=True)
    return tokens_R1[:, 0].clamp_(max=logprobs_RV.shape[-1] - 1)


@torch.inference_mode()
def top_alternatives(logprobs_V: Tensor, num_top: int) -> list[tuple[float, int]]:
    """The `num_top` most likely tokens as (logprob, id), best first."""
    best = logprobs_V.topk(min(num_top, logprobs_V.shape[-1]))
    return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
