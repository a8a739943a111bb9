"""Attention over slots of different lengths without copying keys and values.

Keys and values lie in [slot, head, position, dim]. Single-token rows whose slots are neighbours are attended in one
call over a slice of that memory, padded to the longest of them; `group_rows` decides how many go into one call. Longer
segments are attended one by one.
"""

# R rows, S slots in a group, T tokens, H key-value heads, G query heads per key-value head, D head dimension,
# M positions

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# A call costs about as much as reading this many bytes of keys and values (15 us at 8 GB/s, measured on two x86 cores);
# on a GPU calls dominate, so all rows go into one.
CALL_BYTES_CPU = 120_000
CALL_BYTES_GPU = 1 << 40


@dataclass(slots=True, kw_only=True)
class RowGroup:
    """Rows `first_row..last_row` (exclusive) lie in slots `first_slot..last_slot` (exclusive), perhaps with gaps."""

    first_row: int
    last_row: int
    first_slot: int
    last_slot: int
    num_positions: int
    bias: Tensor | None = None
    """[S, 1, 1, M], 0 or -inf; None if every slot of the group is attended in full."""
    slot_offsets: Tensor | None = None
    """[rows] place of each row among the group's slots; None if there are no gaps."""


def group_rows(slots: Sequence[int], lengths: Sequence[int], *, call_positions: int) -> list[RowGroup]:
    """Cut rows (sorted by slot) into runs; a row joins the run before it while padding costs less than a call."""
    groups: list[RowGroup] = []
    current: RowGroup | None = None
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        if current is not None:
            padded = (slot + 1 - current.first_slot) * max(current.num_positions, length)
            apart = (current.last_slot - current.first_slot) * current.num_positions + length + call_positions
            if padded <= apart:
                current.last_row, current.last_slot = row + 1, slot + 1
                current.num_positions = max(current.num_positions, length)
                continue
        current = RowGroup(first_row=row, last_row=row + 1, first_slot=slot, last_slot=slot + 1, num_positions=length)
        groups.append(current)
    return groups


def mask_group(group: RowGroup, slots: Sequence[int], lengths: Sequence[int], like: Tensor) -> None:
    """Fill in `bias` and `slot_offsets` of a group; dtype and device are those of `like`."""
    num_slots = group.last_slot - group.first_slot
    rows = range(group.first_row, group.last_row)
    if num_slots == len(rows) and all(lengths[row] == group.num_positions for row in rows):
        return
    limits = [group.num_positions] * num_slots
    for row in rows:
        limits[slots[row] - group.first_slot] = lengths[row]
    limits_S1 = torch.tensor(limits, device=like.device)[:, None]
    is_hidden_SM = torch.arange(group.num_positions, device=like.device)[None, :] >= limits_S1
    bias_SM = torch.zeros(is_hidden_SM.shape, dtype=like.dtype, device=like.device)
    group.bias = bias_SM.masked_fill_(is_hidden_SM, -torch.inf)[:, None, None, :]
    if num_slots != len(rows):
        offsets = [slots[row] - group.first_slot for row in rows]
        group.slot_offsets = torch.tensor(offsets, device=like.device)


def attend_group(query_RHGD: Tensor, keys: Tensor, values: Tensor, group: RowGroup) -> Tensor:
    """[rows of the group, H, G, D]; `query_RHGD` holds all rows of the step."""
    query_SHGD = query_RHGD[group.first_row : group.last_row]
    if group.slot_offsets is not None:
        spread = query_SHGD.new_zeros((group.last_slot - group.first_slot, *query_SHGD.shape[1:]))
        query_SHGD = spread.index_copy_(0, group.slot_offsets, query_SHGD)
    window = slice(group.first_slot, group.last_slot), slice(None), slice(0, group.num_positions)
    attended = scaled_dot_product_attention(query_SHGD, keys[window], values[window], attn_mask=group.bias)
    return attended if group.slot_offsets is None else attended.index_select(0, group.slot_offsets)


def segment_bias(start: int, num_tokens: int, num_groups: int, like: Tensor) -> Tensor:
    """[G*T, M] causal mask of a segment whose first token stands at `start`; the G query heads one after another."""
    positions = torch.arange(start + num_tokens, device=like.device)
    is_hidden_TM = positions[None, :] > positions[start:, None]
    bias_TM = torch.zeros(is_hidden_TM.shape, dtype=like.dtype, device=like.device)
    return bias_TM.masked_fill_(is_hidden_TM, -torch.inf).repeat(num_groups, 1)


def attend_segment(query_THGD: Tensor, keys_HMD: Tensor, values_HMD: Tensor, bias: Tensor) -> Tensor:
    """[T, H, G, D] for one segment; keys and values include its own tokens."""
    num_tokens, num_heads, num_groups, dim = query_THGD.shape
    query_HQD = query_THGD.permute(1, 2, 0, 3).reshape(1, num_heads, num_groups * num_tokens, dim)
    attended = scaled_dot_product_attention(query_HQD, keys_HMD[None], values_HMD[None], attn_mask=bias)
    return attended.view(num_heads, num_groups, num_tokens, dim).permute(2, 0, 1, 3)
