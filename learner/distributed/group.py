"""The process group that torchrun sets up, as `learner.ranks.Ranks`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learner.config import LearnConfig
from learner.ranks import ALONE, Ranks
from longturn.errors import ConfigError, LongturnError


class RankLostError(LongturnError):
    """Another rank is gone or did not answer in time."""

    reason = "RANK_LOST"


class GroupRanks:
    """This process among the ranks of the group."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    @property
    def is_leader(self) -> bool:
        """Rank 0."""
        return self._rank == 0

    def share(self, costs: Sequence[int]) -> list[int]:
        """The dearest piece first, each to the rank that has least to do; the same answer on every rank."""
        load = [0] * self._size
        mine: list[int] = []
        for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
            rank = load.index(min(load))
            load[rank] += costs[index]
            if rank == self._rank:
                mine.append(index)
        return sorted(mine)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """One sum per kind of tensor, in place; RankLostError if a rank is gone."""
        kinds = dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors)
        for kind in kinds:
            alike = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            together = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            with _translated():
                dist.all_reduce(together)
            for tensor, part in zip(alike, together.split([tensor.numel() for tensor in alike]), strict=True):
                tensor.detach().copy_(part.view_as(tensor))

    def tell(self, message: Any) -> None:
        """The leader's message, of JSON's types, to all others."""
        data = json.dumps(message).encode()
        self._broadcast(torch.tensor([len(data)], dtype=torch.int64))
        self._broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def hear(self) -> Any:
        """Wait for the leader's next message."""
        length = torch.zeros(1, dtype=torch.int64)
        self._broadcast(length)
        data = torch.zeros(int(length), dtype=torch.uint8)
        self._broadcast(data)
        return json.loads(data.numpy().tobytes())

    def _broadcast(self, tensor: Tensor) -> None:
        with _translated():
            dist.broadcast(tensor, src=0)


@contextmanager
def joined(config: LearnConfig) -> Iterator[Ranks]:
    """The ranks that torchrun started; alone if it did not."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {size} but {', '.join(missing)} is not set: start ranks with `torchrun -m learner`, or "
            "unset WORLD_SIZE"
        )
    # Messages and sums of small numbers lie in main memory also where the model does not.
    backend = "gloo" if config.model.device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=config.ranks.timeout_s))
    try:
        yield GroupRanks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def with_own_device(config: LearnConfig) -> LearnConfig:
    """The settings of this rank: where the model is on `cuda`, each rank of a machine takes a device of its own."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if config.model.device != "cuda" or local_rank == 0:
        return config
    model = config.model.model_copy(update={"device": f"cuda:{local_rank}"})
    return config.model_copy(update={"model": model})


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # What torch raises when a peer closed its connection or the time is over, by whichever backend.
        raise RankLostError(
            f"another rank is gone, or slower than learner.ranks.timeout_s: {error}; its own log says why. Start all "
            "ranks again with --resume auto"
        ) from error
