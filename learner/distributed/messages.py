"""Batches as the leader tells them: JSON, with trajectories in base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from learner.ledger.records import LostGroup, StoredMember, TakenBatch, TakenGroup


def batch_to_json(taken: TakenBatch) -> dict[str, Any]:
    """What `batch_from_json` reads."""
    return {
        "batch": taken.batch,
        "num_closed_slots": taken.num_closed_slots,
        "num_refills": taken.num_refills,
        "lost": [[lost.slot, lost.kind, lost.duration_s, lost.reason] for lost in taken.lost],
        "groups": [
            {
                "slot": group.slot,
                "group_id": group.group_id,
                "kind": group.kind,
                "duration_s": group.duration_s,
                "members": [
                    [member.member_index, member.attempt, base64.b64encode(member.data).decode()]
                    for member in group.members
                ],
            }
            for group in taken.groups
        ],
    }


def batch_from_json(content: Mapping[str, Any]) -> TakenBatch:
    """The leader's batch."""
    return TakenBatch(
        batch=content["batch"],
        num_closed_slots=content["num_closed_slots"],
        num_refills=content["num_refills"],
        lost=tuple(
            LostGroup(slot=slot, kind=kind, duration_s=duration_s, reason=reason)
            for slot, kind, duration_s, reason in content["lost"]
        ),
        groups=tuple(
            TakenGroup(
                slot=group["slot"],
                group_id=group["group_id"],
                kind=group["kind"],
                duration_s=group["duration_s"],
                members=tuple(
                    StoredMember(member_index=index, attempt=attempt, data=base64.b64decode(data))
                    for index, attempt, data in group["members"]
                ),
            )
            for group in content["groups"]
        ),
    )
