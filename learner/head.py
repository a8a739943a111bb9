"""Logprob and entropy of the trained tokens straight from hidden states, without ever holding N x V logits.

N trained tokens, n tokens of one chunk, b tokens of one block, D hidden size, V vocabulary.

Both roads walk the tokens in chunks whose logits fill one buffer of at most `chunk_elements` numbers, so peak memory
does not depend on N x V. `recompute` serves any loss: it drops the logits and makes them again in the backward pass
(four matrix products). `onepass` serves losses whose per-token weights are known beforehand: the loss is taken inside
the chunk and its gradients are formed from the logits at hand (three matrix products). Reductions run in float32, or
float64 for float64 input. Logits are divided by the temperature, as the engine does before it samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK_ELEMENTS = 2**24
# Every logit is touched by several elementwise passes. On a CPU they run over blocks that stay in the level-2 cache;
# over a whole chunk each pass would go to main memory and cost as much as a matrix product.
_CPU_BLOCK_ELEMENTS = 2**17


class TokenLoss(Protocol):
    """The loss of the tokens `tokens` (a slice of the N given to the call), already multiplied by their weights."""

    def __call__(self, logprobs_n: Tensor, entropies_n: Tensor, tokens: slice, /) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadOutput:
    """The summed loss, which carries the gradients, and the detached logprob and entropy of every token."""

    loss: Tensor
    logprobs_N: Tensor
    entropies_N: Tensor


def recompute(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_ids_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_elements: int = _CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Logprob of each target and entropy (nats, full vocabulary) at each position; exact gradients of both.

    `hidden_ND` are the states that predict `target_ids_N`, so the shift by one is the caller's.
    """
    _check(hidden_ND, weight_VD, target_ids_N, temperature)
    logprobs_N, entropies_N = _Recompute.apply(hidden_ND, weight_VD, target_ids_N, temperature, chunk_elements)
    return logprobs_N, entropies_N


def onepass(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_ids_N: Tensor,
    token_loss: TokenLoss,
    *,
    temperature: float = 1.0,
    chunk_elements: int = _CHUNK_ELEMENTS,
) -> HeadOutput:
    """Sum of `token_loss` over the tokens, its gradients formed in the same pass.

    `token_loss` must be elementwise in its two tensors. The loss may be sent backward once: the gradients it carries
    are handed over, not copied.
    """
    _check(hidden_ND, weight_VD, target_ids_N, temperature)
    loss, logprobs_N, entropies_N = _OnePass.apply(
        hidden_ND, weight_VD, target_ids_N, token_loss, temperature, chunk_elements, torch.is_grad_enabled()
    )
    return HeadOutput(loss=loss, logprobs_N=logprobs_N, entropies_N=entropies_N)


def _check(hidden_ND: Tensor, weight_VD: Tensor, target_ids_N: Tensor, temperature: float) -> None:
    if hidden_ND.ndim != 2 or weight_VD.ndim != 2 or hidden_ND.shape[1] != weight_VD.shape[1]:
        raise ValueError(f"hidden {tuple(hidden_ND.shape)} and head {tuple(weight_VD.shape)} do not fit")
    if target_ids_N.shape != hidden_ND.shape[:1]:
        raise ValueError(f"{tuple(target_ids_N.shape)} targets for {hidden_ND.shape[0]} hidden states")
    if hidden_ND.dtype != weight_VD.dtype:
        raise ValueError(f"hidden states are {hidden_ND.dtype}, the head is {weight_VD.dtype}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")


class _Walk:
    """The chunks of one call, their logits buffer and the matrix products on it."""

    def __init__(self, hidden_ND: Tensor, weight_VD: Tensor, temperature: float, chunk_elements: int) -> None:
        self._hidden_ND, self._weight_VD = hidden_ND, weight_VD
        self._scale = 1.0 / temperature
        self._num_tokens, vocabulary = hidden_ND.shape[0], weight_VD.shape[0]
        self._chunk = min(max(1, chunk_elements // vocabulary), max(1, self._num_tokens))
        self._block = max(1, _CPU_BLOCK_ELEMENTS // vocabulary) if hidden_ND.device.type == "cpu" else self._chunk
        self.dtype = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
        self._logits_nV = hidden_ND.new_empty(self._chunk, vocabulary, dtype=self.dtype)
        self._scratch_bV = hidden_ND.new_empty(min(self._block, self._chunk), vocabulary, dtype=self.dtype)

    def chunks(self) -> Iterator[slice]:
        for start in range(0, self._num_tokens, self._chunk):
            yield slice(start, min(start + self._chunk, self._num_tokens))

    def logits(self, tokens: slice) -> Tensor:
        """Fill the buffer with the logits of a chunk, divided by the temperature."""
        hidden_nD = self._hidden_ND[tokens]
        logits_nV = self._logits_nV[: hidden_nD.shape[0]]
        if hidden_nD.dtype == self.dtype:
            return torch.addmm(logits_nV, hidden_nD, self._weight_VD.T, beta=0, alpha=self._scale, out=logits_nV)
        return logits_nV.copy_(hidden_nD @ self._weight_VD.T).mul_(self._scale)

    def normalise_(self, logits_nV: Tensor, targets_n: Tensor, logprobs_n: Tensor, entropies_n: Tensor) -> None:
        """Turn logits into log-probabilities in place and write the statistics of the chunk."""
        for rows in self._blocks(logits_nV):
            x_bV = logits_nV[rows]
            x_bV.sub_(x_bV.amax(dim=1, keepdim=True))
            p_bV = torch.exp(x_bV, out=self._scratch_bV[: x_bV.shape[0]])
            mass_b = p_bV.sum(dim=1)
            log_mass_b = mass_b.log()
            torch.sub(log_mass_b, p_bV.mul_(x_bV).sum(dim=1).div_(mass_b), out=entropies_n[rows])
            x_bV.sub_(log_mass_b[:, None])
            logprobs_n[rows] = x_bV.gather(1, targets_n[rows, None])[:, 0]
        # Rounding can leave a peaked row a hair below zero, which an entropy never is.
        entropies_n.clamp_(min=0.0)

    def logit_gradient_(
        self, logp_nV: Tensor, targets_n: Tensor, entropies_n: Tensor, d_logprobs_n: Tensor, d_entropies_n: Tensor
    ) -> None:
        """Turn log-probabilities in place into the gradient with respect to hidden @ weight.T."""
        # d logprob / d z_v = [v is the target] - p_v;  d H / d z_v = -p_v (log p_v + H);  z = logits / temperature.
        slope_n = d_entropies_n * -self._scale
        offset_n = slope_n * entropies_n - d_logprobs_n * self._scale
        for rows in self._blocks(logp_nV):
            x_bV = logp_nV[rows]
            p_bV = torch.exp(x_bV, out=self._scratch_bV[: x_bV.shape[0]])
            x_bV.mul_(slope_n[rows, None]).add_(offset_n[rows, None]).mul_(p_bV)
        logp_nV.scatter_add_(1, targets_n[:, None], (d_logprobs_n * self._scale)[:, None])

    def add_gradients(self, d_logits_nV: Tensor, tokens: slice, grad_ND: Tensor | None, grad_VD: Tensor | None) -> None:
        """Carry the gradient of one chunk to the hidden states (written) and to the head (added)."""
        d_logits_nV = d_logits_nV.to(self._weight_VD.dtype)
        if grad_ND is not None:
            torch.mm(d_logits_nV, self._weight_VD, out=grad_ND[tokens])
        if grad_VD is not None and grad_VD.dtype == d_logits_nV.dtype:
            grad_VD.addmm_(d_logits_nV.T, self._hidden_ND[tokens])
        elif grad_VD is not None:
            grad_VD.add_(d_logits_nV.T @ self._hidden_ND[tokens])

    def _blocks(self, logits_nV: Tensor) -> Iterator[slice]:
        for start in range(0, logits_nV.shape[0], self._block):
            yield slice(start, start + self._block)


def _gradient_buffers(
    hidden_ND: Tensor, weight_VD: Tensor, walk: _Walk, *, for_hidden: bool, for_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    grad_ND = torch.empty_like(hidden_ND, memory_format=torch.contiguous_format) if for_hidden else None
    grad_VD = torch.zeros_like(weight_VD, dtype=walk.dtype) if for_weight else None
    return grad_ND, grad_VD


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, target_ids_N: Tensor, temperature: float, chunk_elements: int
    ) -> tuple[Tensor, Tensor]:
        walk = _Walk(hidden_ND, weight_VD, temperature, chunk_elements)
        logprobs_N = hidden_ND.new_empty(hidden_ND.shape[0], dtype=walk.dtype)
        entropies_N = torch.empty_like(logprobs_N)
        for tokens in walk.chunks():
            walk.normalise_(walk.logits(tokens), target_ids_N[tokens], logprobs_N[tokens], entropies_N[tokens])
        ctx.save_for_backward(hidden_ND, weight_VD, target_ids_N, logprobs_N, entropies_N)
        ctx.settings = (temperature, chunk_elements)
        return logprobs_N, entropies_N

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, d_logprobs_N: Tensor, d_entropies_N: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, target_ids_N, logprobs_N, entropies_N = ctx.saved_tensors
        walk = _Walk(hidden_ND, weight_VD, *ctx.settings)
        grad_ND, grad_VD = _gradient_buffers(
            hidden_ND, weight_VD, walk, for_hidden=ctx.needs_input_grad[0], for_weight=ctx.needs_input_grad[1]
        )
        for tokens in walk.chunks():
            logits_nV, targets_n = walk.logits(tokens), target_ids_N[tokens]
            # The log-normaliser follows from the saved logprob: no second pass of maxima and sums.
            logits_nV.sub_(logits_nV.gather(1, targets_n[:, None]) - logprobs_N[tokens, None])
            walk.logit_gradient_(logits_nV, targets_n, entropies_N[tokens], d_logprobs_N[tokens], d_entropies_N[tokens])
            walk.add_gradients(logits_nV, tokens, grad_ND, grad_VD)
        return grad_ND, None if grad_VD is None else grad_VD.to(weight_VD.dtype), None, None, None


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        target_ids_N: Tensor,
        token_loss: TokenLoss,
        temperature: float,
        chunk_elements: int,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        walk = _Walk(hidden_ND, weight_VD, temperature, chunk_elements)
        for_hidden, for_weight = (with_gradients and needed for needed in ctx.needs_input_grad[:2])
        grad_ND, grad_VD = _gradient_buffers(hidden_ND, weight_VD, walk, for_hidden=for_hidden, for_weight=for_weight)
        loss = hidden_ND.new_zeros((), dtype=walk.dtype)
        logprobs_N = hidden_ND.new_empty(hidden_ND.shape[0], dtype=walk.dtype)
        entropies_N = torch.empty_like(logprobs_N)
        for tokens in walk.chunks():
            logits_nV, targets_n = walk.logits(tokens), target_ids_N[tokens]
            walk.normalise_(logits_nV, targets_n, logprobs_N[tokens], entropies_N[tokens])
            chunk_loss, d_logprobs_n, d_entropies_n = _differentiate(
                token_loss, logprobs_N[tokens], entropies_N[tokens], tokens
            )
            loss += chunk_loss
            if for_hidden or for_weight:
                walk.logit_gradient_(logits_nV, targets_n, entropies_N[tokens], d_logprobs_n, d_entropies_n)
                walk.add_gradients(logits_nV, tokens, grad_ND, grad_VD)
        ctx.gradients = (grad_ND, None if grad_VD is None else grad_VD.to(weight_VD.dtype))
        ctx.mark_non_differentiable(logprobs_N, entropies_N)
        return loss, logprobs_N, entropies_N

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, d_loss: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the loss of onepass was sent backward twice; use recompute for that")
        (grad_ND, grad_VD), ctx.gradients = ctx.gradients, None
        for gradient in (grad_ND, grad_VD):
            if gradient is not None:
                gradient.mul_(d_loss)
        return grad_ND, grad_VD, None, None, None, None, None


def _differentiate(
    token_loss: TokenLoss, logprobs_n: Tensor, entropies_n: Tensor, tokens: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss of a chunk and its derivatives by both inputs; zero by one that the loss ignores."""
    with torch.enable_grad():
        leaves = (logprobs_n.detach().requires_grad_(), entropies_n.detach().requires_grad_())
        losses_n = token_loss(*leaves, tokens)
        if losses_n.shape != logprobs_n.shape:
            raise ValueError(f"token_loss gave {tuple(losses_n.shape)} losses for {tuple(logprobs_n.shape)} tokens")
        loss = losses_n.sum()
        if not loss.requires_grad:
            return loss, torch.zeros_like(logprobs_n), torch.zeros_like(entropies_n)
        d_logprobs_n, d_entropies_n = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return loss.detach(), d_logprobs_n, d_entropies_n
