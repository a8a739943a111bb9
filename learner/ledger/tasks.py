"""What is played in a slot, and with which seeds: pure functions of the run's settings."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from functools import lru_cache

from longturn.task_file import TaskEntry


def sampling_seed(run_seed: int, group_id: str, member_index: int) -> int:
    """Seed of a member's samples: fixed by its arguments, positive, below 2**31 so that every engine takes it."""
    digest = hashlib.sha256(f"{run_seed}/{group_id}/{member_index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class TaskSchedule:
    """Task of every slot: a pure function of (run seed, slot).

    The task file is played through again and again. `shuffled` draws a new order for every pass; `sequential` keeps the
    order of the file, for a file of fresh tasks sorted by whoever wrote it.
    """

    def __init__(self, entries: Sequence[TaskEntry], *, run_seed: int, is_shuffled: bool) -> None:
        if not entries:
            raise ValueError("a task schedule needs at least one task")
        self._entries = tuple(entries)
        self._run_seed = run_seed
        self._is_shuffled = is_shuffled

    def entry(self, slot: int) -> TaskEntry:
        """What is played in `slot`, counted from 0."""
        turn_of_file, position = divmod(slot, len(self._entries))
        if not self._is_shuffled:
            return self._entries[position]
        return self._entries[_order(self._run_seed, turn_of_file, len(self._entries))[position]]

    def refill(self, batch: int, index: int) -> TaskEntry:
        """What is played in the refill of a batch, counted from 0."""
        return random.Random(f"{self._run_seed}/refill/{batch}/{index}").choice(self._entries)


@lru_cache(maxsize=4)
def _order(run_seed: int, turn_of_file: int, num_entries: int) -> tuple[int, ...]:
    order = list(range(num_entries))
    random.Random(f"{run_seed}/tasks/{turn_of_file}").shuffle(order)
    return tuple(order)
