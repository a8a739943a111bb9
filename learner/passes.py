"""How rows go through the body of a model. T tokens of the rows of one pass, n trained ones, D hidden size.

A row on its own needs no padding and no mask. Several short rows may share a pass: each then keeps its own positions,
which start at 0 and tell transformers where one row ends and the next begins (block mask, or varlen attention where the
attention implementation has it), so that no row sees another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from learner.batch import BatchTensors
from learner.ranks import ALONE, Ranks
from learner.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOptions:
    """How the rows of a batch are cut into passes, and who computes them."""

    pack_tokens: int = 0
    """Rows are put into one pass until they hold that many tokens; 0: every row alone."""
    recompute_layers: bool = False
    """True keeps only the inputs of layers for the backward pass and computes the rest again."""
    ranks: Ranks = ALONE


ONE_BY_ONE = PassOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Consecutive rows that go through the body together; `tokens` are their trained tokens within the batch."""

    rows: tuple[Row, ...]
    tokens: slice

    @property
    def num_tokens(self) -> int:
        """Ids of all rows."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def targets(self) -> list[int]:
        """Ids of the trained tokens."""
        return [row.ids[position] for row in self.rows for position in row.positions]

    @property
    def sources(self) -> list[int]:
        """Places, among the T tokens, that predict the trained tokens."""
        places: list[int] = []
        start = 0
        for row in self.rows:
            places.extend(start + position - 1 for position in row.positions)
            start += len(row.ids)
        return places

    @property
    def last_tokens(self) -> list[int]:
        """Number, within the batch, of the last trained token of each row."""
        places: list[int] = []
        stop = self.tokens.start
        for row in self.rows:
            stop += row.num_trained
            places.append(stop - 1)
        return places

    @property
    def ends(self) -> list[int]:
        """Places, among the T tokens, of the last token of each row."""
        places: list[int] = []
        start = 0
        for row in self.rows:
            start += len(row.ids)
            places.append(start - 1)
        return places


def passes_of(tensors: BatchTensors, options: PassOptions) -> list[Pass]:
    """This rank's passes over a batch, in row order; rows without trained tokens need none."""
    found: list[Pass] = []
    for row, tokens in zip(tensors.rows, tensors.token_slices, strict=True):
        if not row.num_trained:
            continue
        last = found[-1] if found else None
        if last is not None and last.num_tokens + len(row.ids) <= options.pack_tokens:
            found[-1] = Pass(rows=(*last.rows, row), tokens=slice(last.tokens.start, tokens.stop))
        else:
            found.append(Pass(rows=(row,), tokens=tokens))
    return [found[index] for index in options.ranks.share([each.num_tokens for each in found])]


def hidden_of(body: nn.Module, rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Last hidden states of all ids of some rows, T x D."""
    ids_1T = torch.tensor([[token for row in rows for token in row]], device=device)
    if len(rows) == 1:
        return body(input_ids=ids_1T, use_cache=False).last_hidden_state[0]
    positions_1T = torch.tensor([[position for row in rows for position in range(len(row))]], device=device)
    return body(input_ids=ids_1T, position_ids=positions_1T, use_cache=False).last_hidden_state[0]


def can_recompute(body: nn.Module) -> bool:
    """Whether the layers of a body know how to be computed again."""
    return any(isinstance(module, GradientCheckpointingLayer) for module in body.modules())


@contextmanager
def recomputing(body: nn.Module, *, is_on: bool) -> Iterator[None]:
    """Have the layers of a forward pass in this block drop what the backward pass can compute again.

    Only the layers themselves are told that they train: what lies in them, such as dropout, stays as it is.
    """
    layers = [module for module in body.modules() if isinstance(module, GradientCheckpointingLayer)] if is_on else []
    for layer in layers:
        layer.gradient_checkpointing = layer.training = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False
