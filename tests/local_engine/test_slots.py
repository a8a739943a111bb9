"""Which slot a prompt gets, and what it may reuse."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from local_engine.slots import SlotTable


def ids(*values: int) -> NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)


def filled(table: SlotTable, slot_ids: list[int], namespace: str = "") -> int:
    """Run a request through the table and return its slot."""
    prompt = ids(*slot_ids)
    offer = table.offer(prompt, namespace=namespace, max_reused=len(slot_ids) - 1)
    assert offer is not None
    table.take(offer, prompt, namespace=namespace)
    table.extend(offer.slot, offer.num_reused, slot_ids[offer.num_reused :])
    return offer.slot


def new_table(num_slots: int = 3, *, can_rewind: bool = True) -> SlotTable:
    return SlotTable(num_slots=num_slots, slot_tokens=64, can_rewind=can_rewind)


def test_an_extension_continues_in_place() -> None:
    table = new_table()
    slot = filled(table, [1, 2, 3])
    table.release(slot)
    offer = table.offer(ids(1, 2, 3, 4), namespace="", max_reused=3)
    assert offer is not None
    assert (offer.slot, offer.num_reused, offer.copy_from) == (slot, 3, None)


def test_a_branch_copies_and_leaves_its_source_alone() -> None:
    table = new_table()
    slot = filled(table, [1, 2, 3, 4])
    table.release(slot)
    offer = table.offer(ids(1, 2, 9), namespace="", max_reused=2)
    assert offer is not None
    assert offer.slot != slot
    assert (offer.num_reused, offer.copy_from) == (2, slot)


def test_a_running_slot_is_copied_from_but_never_given_away() -> None:
    table = new_table(2)
    slot = filled(table, [1, 2, 3])
    offer = table.offer(ids(1, 2, 3, 4), namespace="", max_reused=3)
    assert offer is not None
    assert (offer.slot, offer.copy_from) == (1 - slot, slot)
    filled(table, [7, 8])
    assert table.offer(ids(5), namespace="", max_reused=0) is None


def test_without_rewinding_only_whole_slots_are_continued() -> None:
    table = new_table(can_rewind=False)
    slot = filled(table, [1, 2, 3])
    table.release(slot)
    branch = table.offer(ids(1, 2, 9), namespace="", max_reused=2)
    assert branch is not None
    assert (branch.num_reused, branch.copy_from) == (0, None)
    same = table.offer(ids(1, 2, 3), namespace="", max_reused=2)
    assert same is not None
    assert same.num_reused == 0
    longer = table.offer(ids(1, 2, 3, 4), namespace="", max_reused=3)
    assert longer is not None
    assert (longer.slot, longer.num_reused) == (slot, 3)


def test_the_least_recently_used_slot_is_evicted_after_the_empty_ones() -> None:
    table = new_table(3)
    first, second = filled(table, [1]), filled(table, [2])
    table.release(second)
    table.release(first)
    third = filled(table, [3])
    assert third not in (first, second)
    assert filled(table, [4]) == second


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.sampled_from(["", "salt"])), max_size=12
    )
)
def test_what_is_offered_is_always_a_true_prefix(requests: list[tuple[list[int], str]]) -> None:
    table = new_table(4)
    held: dict[int, tuple[list[int], str]] = {}
    for prompt, namespace in requests:
        offer = table.offer(ids(*prompt), namespace=namespace, max_reused=len(prompt) - 1)
        assert offer is not None
        source = offer.slot if offer.copy_from is None else offer.copy_from
        if offer.num_reused:
            known, salt = held[source]
            assert salt == namespace
            assert known[: offer.num_reused] == prompt[: offer.num_reused]
        possible = [
            common for known, salt in held.values() if salt == namespace for common in [shared_length(known, prompt)]
        ]
        assert offer.num_reused == min(len(prompt) - 1, max(possible, default=0))
        table.take(offer, ids(*prompt), namespace=namespace)
        table.extend(offer.slot, offer.num_reused, prompt[offer.num_reused :])
        table.release(offer.slot)
        held[offer.slot] = (prompt, namespace)


def shared_length(one: list[int], other: list[int]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
